"""Times kernels as compiled from several sets of headers, in one process, and DeepGEMM's where that is installed.

For a change of device code that may cost no speed. Of few rows all take turns of a few milliseconds. From 512 rows on
each is measured alone, because the clock follows the power that a kernel draws, 20 to 60 ms late: in bursts (an idle
pause, then 2 ms of replays) and sustained (1.11 s of replays, of which the last 0.86 s count). Runs from a checkout, on
a Hopper GPU.

``--without`` times headers without a part of the main loop, whose bits are others: what that part costs. Products whose
kernel has no such part are timed without it; ``loads`` are left out but for a tile's first turn of the ring, so that
little is where K has few stages' worth of blocks.

Exit code 0: measured. 1: some kernel of other headers gives other bits. 2: bad arguments. 3: no Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from ablations import ABLATIONS, headers_without  # noqa: E402
from compared_products import Call, Case, products  # noqa: E402

from fp8gemm.cli.arguments import parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, note, prints_json, tell, tell_json  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, diagnose  # noqa: E402
from fp8gemm.jit.compiler import nvrtc_version  # noqa: E402
from fp8gemm.jit.parallel import build_many  # noqa: E402
from fp8gemm.lab.bench.graph import GraphTimer  # noqa: E402
from fp8gemm.lab.bench.regimes import ALONE_FROM, Regime  # noqa: E402
from fp8gemm.lab.bench.timing import Timer, measure_in_turn, schedule_sets  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from tests.mutations import tree  # noqa: E402

NEW, DEEP_GEMM, WITHOUT = "new", "deepgemm", "without "
TURNS, SUSTAINED = 25, 6

Row = dict[str, Any]


def measure(case: Case, headers: dict[str, Path], sustained: int = SUSTAINED) -> Row:
    graphs: dict[str, GraphTimer] = {}

    def graph(calls: Sequence[Call]) -> GraphTimer:
        return GraphTimer(calls, schedule_sets(len(calls), case.us, measure_us=0))

    first, same = None, True
    for name, include in headers.items():
        tree.use(include)
        calls = case.calls()
        case.out.zero_()
        calls[0]()
        bits = case.out.clone().view(torch.uint8)
        torch.cuda.synchronize()  # the graphs' launches are on a stream of their own
        first = bits if first is None else first
        same = same and (name.startswith(WITHOUT) or bool(torch.equal(first, bits)))
        graphs[name] = graph(calls)
    if case.deep_gemm is not None:
        try:
            graphs[DEEP_GEMM] = graph(case.deep_gemm())
        except Exception as error:  # NOTE: a peer that is not there, or cannot do this, must not end the run
            print(f"  {DEEP_GEMM}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
    alone: dict[str, tuple[int, Mapping[str, Timer]]] = {
        regime.value: (rounds, {name: partial(timer.alone, regime) for name, timer in graphs.items()})
        for regime, rounds in ((Regime.BURST, Regime.BURST.rounds), (Regime.SUSTAINED, sustained))
    }
    regimes = alone if case.m >= ALONE_FROM else {"turns": (TURNS, graphs)}
    us = {name: measure_in_turn(timers, rounds=rounds).us for name, (rounds, timers) in regimes.items()}
    return {"case": case.name, "us": us, "same_bits": same}


def summary(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """How fast the new headers' kernels are: time of the others over theirs."""
    for regime, other in itertools.product(("turns", "burst", "sustained"), names):
        timed = [times for row in rows if other in (times := row["us"].get(regime, {}))]
        ratios = [times[other] / times[NEW] for times in timed]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            span = f"{min(ratios):.4f} to {max(ratios):.4f}"
            yield f"{regime:9} {other:>8}/{NEW}: mean {mean:.4f}, {span} at {len(ratios)} products"


def shown(row: Row) -> str:
    us = row["us"].items()
    times = "; ".join(f"{regime} " + " ".join(f"{name} {each:.2f}" for name, each in of.items()) for regime, of in us)
    return f"{row['case']}: {times}{'' if row['same_bits'] else '  OTHER BITS'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headers", action="append", default=[], metavar="NAME=DIR", help="others, to compare with")
    parser.add_argument(
        "--without", action="append", default=[], choices=ABLATIONS, help="also ours without this part of the main loop"
    )
    add_json(parser, ", again after each product")
    parser.add_argument("--commit", help="of these headers, where git cannot tell")
    parser.add_argument("--only", action="append", metavar="TEXT", help="products whose name has this text, or another")
    parser.add_argument("--sustained", type=parse_positive, default=SUSTAINED, help="samples of that regime, default 6")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin none after this many")
    options = parser.parse_args()
    if not options.headers and not options.without:
        parser.error("expected --headers or --without, to compare with; got neither")
    diagnosis = diagnose()
    if diagnosis.status is not DeviceStatus.READY:
        note(f"compare_headers: {diagnosis.message}")
        return Exit.NO_GPU
    headers = {NEW: tree.INCLUDE}
    headers |= {name: Path(place).resolve() for name, _, place in (each.partition("=") for each in options.headers)}
    with TemporaryDirectory() as place:
        headers |= {f"{WITHOUT}{part}": headers_without(part, Path(place).resolve()) for part in options.without}
        return compare(options, headers)


def compare(options: argparse.Namespace, headers: dict[str, Path]) -> Exit:
    started, rows = time.monotonic(), list[Row]()
    wanted = [product for product in products() if any(each in product.name for each in options.only or [""])]
    code: dict[str, list[bytes]] = {}
    for name, include in headers.items():
        tree.use(include)
        code[name] = [artifact.cubin for artifact in build_many([product.request for product in wanted])]
    result = {
        "gpu": torch.cuda.get_device_name(0),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "nvrtc": nvrtc_version(),
        **provenance(options.commit, include=tree.INCLUDE),
        "sustained_samples": options.sustained,
        "rows": rows,
    }
    for index, product in enumerate(wanted):
        if time.monotonic() - started < options.seconds:
            # Where a part is left out of a kernel that has no such part, there is nothing to compare.
            of_product = {
                name: include
                for name, include in headers.items()
                if not name.startswith(WITHOUT) or code[name][index] != code[NEW][index]
            }
            rows.append(measure(product.case(), of_product, options.sustained))
            with apart(options):
                print(shown(rows[-1]), flush=True)
            if not prints_json(options):
                tell_json(options, result)
    tell(options, "\n".join(summary(rows, [*list(headers)[1:], DEEP_GEMM])))
    if prints_json(options):
        tell_json(options, result)
    return Exit.DONE if all(row["same_bits"] for row in rows) else Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
