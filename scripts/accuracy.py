"""Is FP8 good enough for a model? Errors of FP8 and bfloat16 products against the exact ones of unquantised operands.

By distribution, on layer shapes, over K, and through a small network. These figures gate nothing; beside them every
kernel's result is held to the gates of the tests, on the same operands. With --model instead through a real network, a
sentence encoder, which has gates of its own. Runs on a Hopper GPU, or without one with the reference backend. Runs from
a checkout.

Exit code 0: done. 1: a kernel, or the real network, failed a gate. 2: bad arguments.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fp8gemm import __version__  # noqa: E402
from fp8gemm.cli.arguments import parse_m, parse_nk, parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, tell_json  # noqa: E402
from fp8gemm.errors import InputError, UnsupportedError  # noqa: E402
from fp8gemm.installed import installed_version  # noqa: E402
from fp8gemm.lab.accuracy import encoder, model, network, plot  # noqa: E402
from fp8gemm.lab.accuracy.data import DISTRIBUTIONS, Distribution  # noqa: E402
from fp8gemm.lab.accuracy.figures import Figures, compare, exact_product  # noqa: E402
from fp8gemm.lab.accuracy.network import Agreement, NetworkShape, measure_network  # noqa: E402
from fp8gemm.lab.accuracy.products import Operands, Product, available_products  # noqa: E402
from fp8gemm.lab.accuracy.report import Report, Row, RowTable, Verdict  # noqa: E402
from fp8gemm.lab.bench.report import Shape  # noqa: E402
from fp8gemm.lab.demo.target import Target, find_target  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from fp8gemm.lab.pyplot import require_matplotlib  # noqa: E402
from fp8gemm.terminal.progress import bar  # noqa: E402
from tests.numerics import Gate, check  # noqa: E402

SENTENCES = ROOT / "tests" / "data" / "sentences.txt"


@dataclass(frozen=True)
class Sizes:
    """What is measured unless options say otherwise; lists as on the command line."""

    m: int
    nk: str
    n: int
    k: str
    network: NetworkShape


FULL = Sizes(
    m=256,
    nk="2112x7168,7168x2048,4096x7168,24576x1536,7168x16384",
    n=4096,
    k="512,1024,2048,4096,8192,16384",
    network=NetworkShape(tokens=512, hidden=2048, inner=5632, layers=3, classes=32000),
)
QUICK = Sizes(
    m=64,
    nk="576x1024,1024x512",
    n=256,
    k="512,1024,2048",
    network=NetworkShape(tokens=128, hidden=256, inner=512, layers=3, classes=2000),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, measure, print and write; the exit code."""
    options = _parse(argv)
    if options.earlier is not None:
        plot.draw(options.earlier, options.plot)
        return 0
    target = find_target()
    with apart(options):
        result, failed = _through_model(options, target) if options.model else _through_products(options, target)
    tell_json(options, result)
    return Exit.FAILED if failed else Exit.DONE


def _through_products(options: argparse.Namespace, target: Target) -> tuple[dict[str, Any], bool]:
    """The figures, and whether a gate failed."""
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    device = target.gpu.name if target.gpu is not None else "CPU, reference backend"
    print(f"fp8gemm {__version__}, torch {torch.__version__}, seed {seed}, on: {device}\n{target.reason}\n")
    products = available_products(target.device)
    report = _measure(options, target, products, heading=_heading(options, device, target, products, seed))
    print("\n".join(report.lines()))
    result = report.as_json()
    if options.plot is not None:
        plot.draw(result, options.plot)
    print(f"\nkernel gates: {'FAILED' if report.failed else 'passed on every shape'}")
    return result, report.failed


def _through_model(options: argparse.Namespace, target: Target) -> tuple[dict[str, Any], bool]:
    """The same for ``--model``."""
    sentences = encoder.read_sentences(SENTENCES)
    device = target.gpu.name if target.gpu is not None else "CPU, reference backend"
    print(f"fp8gemm {__version__}, torch {torch.__version__}, on: {device}\n{target.reason}\n")
    heading = {**_machine(device, target), "transformers": installed_version("transformers")}
    with _current(target):
        report = model.measure_model(options.model_path, sentences, target.device, heading=heading)
    print("\n".join(report.lines()))
    failures = report.failures()
    print("\n" + "\n".join(f"FAILED: {failure}" for failure in failures) if failures else "\ngates: passed")
    return report.as_json(), bool(failures)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    text = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(description=text[0], epilog=text[-1])
    parser.add_argument("--m", type=parse_positive, metavar="M", help=f"rows of every product, default {FULL.m}")
    parser.add_argument("--nk", type=parse_nk, metavar="NxK,...", help=f"layers, default {FULL.nk}")
    parser.add_argument("--k", type=parse_m, metavar="K,...", help=f"values of the sweep over K, default {FULL.k}")
    parser.add_argument("--n", type=parse_positive, metavar="N", help=f"N of the sweep over K, default {FULL.n}")
    parser.add_argument(
        "--quick", action="store_true", help="small shapes, for seconds on a CPU, unless others are given"
    )
    parser.add_argument("--seed", type=int, help="of the random operands, default a fresh one")
    add_json(parser)
    parser.add_argument("--plot", type=Path, metavar="PATH.png", help="draw the errors (needs fp8gemm[plot])")
    parser.add_argument(
        "--from", dest="earlier", type=_result, metavar="JSON", help="measure nothing; --plot what --json wrote earlier"
    )
    parser.add_argument("--model", action="store_true", help=f"measure {encoder.MODEL_NAME} instead")
    parser.add_argument(
        "--model-path", type=Path, metavar="FOLDER", help=f"where it is, default the package {encoder.PACKAGE}"
    )
    options = parser.parse_args(argv)
    if options.model:
        _check_model_options(parser, options)
    elif options.model_path is not None:
        parser.error("--model-path: expected --model with it")
    sizes = QUICK if options.quick else FULL
    options.network = sizes.network
    defaults = {"m": sizes.m, "nk": parse_nk(sizes.nk), "k": parse_m(sizes.k), "n": sizes.n}
    for name, default in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    for size in [options.n, *options.k, *(size for pair in options.nk for size in pair)]:
        if size % 16:  # torch._scaled_mm takes no other N
            parser.error(f"expected every N and K to be a multiple of 16, got {size}")
    if options.earlier is not None and (options.plot is None or options.json is not None):
        parser.error("--from: expected --plot with it and no --json")
    if options.plot is not None:
        try:
            require_matplotlib()
        except UnsupportedError as error:
            parser.error(str(error))
    return options


def _check_model_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """The model's folder must be there, and the options of the other measurement must not."""
    for name in ("m", "nk", "k", "n", "seed", "plot", "earlier", "quick"):
        given = getattr(options, name)
        if given is not None and given is not False:
            flag = "from" if name == "earlier" else name
            parser.error(f"--model: expected --model-path and --json beside it at most, got --{flag}")
    try:
        options.model_path = encoder.find_model_folder(options.model_path)
    except (InputError, UnsupportedError) as error:
        parser.error(f"--model: {error}")


def _result(path: str) -> dict[str, Any]:
    """What `--json` wrote there."""
    try:
        result = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"expected a file that --json wrote, got {path}: {error}") from error
    if not isinstance(result, dict) or not {"device", "products", "summary", "rows"} <= result.keys():
        raise argparse.ArgumentTypeError(f"expected a file that --json wrote, got {path}, which is something else")
    return result


def _heading(
    options: argparse.Namespace, device: str, target: Target, products: Sequence[Product], seed: int
) -> dict[str, Any]:
    return {
        **_machine(device, target),
        "seed": seed,
        "m": options.m,
        "layers": [f"{n}x{k}" for n, k in options.nk],
        "k_sweep": {"n": options.n, "k": options.k},
        "products": {product.name: product.description for product in products},
        "distributions": {each.name: each.description for each in DISTRIBUTIONS},
        "network": {"description": network.DESCRIPTION, **asdict(options.network)},
    }


def _machine(device: str, target: Target) -> dict[str, Any]:
    return {
        "gpu": None if target.gpu is None else target.gpu.name,
        "device": device,
        "backend": target.backend,
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "version": __version__,
        **provenance(),
    }


def _current(target: Target) -> AbstractContextManager[object]:
    return nullcontext() if target.gpu is None else torch.cuda.device(target.device)


def _shapes(options: argparse.Namespace) -> Iterator[tuple[str, Shape]]:
    for n, k in options.nk:
        yield "layers", Shape(options.m, n, k)
    for k in options.k:
        yield "k", Shape(options.m, options.n, k)


def _measure(
    options: argparse.Namespace, target: Target, products: Sequence[Product], *, heading: dict[str, Any]
) -> Report:
    """Every row, printed as soon as it is there, and the network."""
    work = [(each, sweep, shape) for each in DISTRIBUTIONS for sweep, shape in _shapes(options)]
    seed = heading["seed"]
    rows: list[Row] = []
    agreement: dict[str, dict[str, Agreement]] = {}
    with (
        _current(target),
        torch.no_grad(),
        bar(len(work) + len(DISTRIBUTIONS), "rows") as progress,
    ):
        table = RowTable([product.name for product in products])
        progress.write(table.header())
        for distribution, sweep, shape in work:
            rows.append(_row(distribution, sweep, shape, products, generator=_generator(target, seed + len(rows))))
            progress.write(table.line(rows[-1]))
            progress.update()
        for distribution in DISTRIBUTIONS:
            agreement[distribution.name] = measure_network(
                distribution, options.network, products, _generator(target, seed)
            )
            progress.update()
    return Report(heading, rows, agreement)


def _generator(target: Target, seed: int) -> torch.Generator:
    return torch.Generator(target.device).manual_seed(seed)


def _row(
    distribution: Distribution, sweep: str, shape: Shape, products: Sequence[Product], *, generator: torch.Generator
) -> Row:
    x = distribution.activation(shape.m, shape.k, generator)
    w = distribution.weight(shape.n, shape.k, generator)
    exact, magnitude = exact_product(x, w)
    figures: dict[str, Figures] = {}
    gates: dict[str, Verdict] = {}
    for product in products:
        result = product.multiply(x, w)
        figures[product.name] = compare(result.out, exact, magnitude)
        if result.operands is not None:
            gates[product.name] = _judge(result.out, result.operands, distribution)
    return Row(sweep, distribution.name, shape, generator.initial_seed(), figures, gates)


def _judge(out: torch.Tensor, operands: Operands, distribution: Distribution) -> Verdict:
    """The kernel's own error, by the gates that the tests hold it to."""
    report = check(out, *operands, data=distribution.gates)
    closest = max(report.gates, key=_closeness)
    return Verdict(distribution.gates, report.passed, report.failed, closest.name, closest.worst, closest.limit)


def _closeness(gate: Gate) -> tuple[float, bool]:
    """Order of the gates: by worst over limit. Of gates at 0, one that some error could still pass is of interest."""
    if gate.limit:
        return gate.worst / gate.limit, True
    return math.inf if gate.worst else 0.0, False


if __name__ == "__main__":
    sys.exit(main())
