"""What 8 and 64 GPUs would give, by a model: link rates in, speeds out. Needs no GPU, and measures nothing.

    python scripts/parallel_model.py --latency-us 12 --nvlink-share 0.8

Of a decoder layer it adds up the products of its linear layers, or of its experts, each as long as the tile choice
predicts (``fp8gemm explain``), and what ranks send. Attention, norms, routers and quantisers are left out, so that
speedups are of the part of a model that is FP8 products. A collective takes a latency, and its bytes at a share of the
link's rate, as a ring does; ranks have equal loads. The same formulas are held against collectives that two H200s took
(`MEASURED`), and the result says how far off they are. ``--json FILE`` writes what docs/parallel.md shows.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm.ahead.architectures import linears_of_config, read_config  # noqa: E402
from fp8gemm.ahead.experts import experts_of_config  # noqa: E402
from fp8gemm.cli.arguments import Words, parse_m, parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, tell_json  # noqa: E402
from fp8gemm.errors import InputError, UnsupportedError  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from fp8gemm.quoting import quoted  # noqa: E402
from fp8gemm.tuning.explain import predict_config  # noqa: E402
from fp8gemm.tuning.grouped import select_grouped  # noqa: E402
from fp8gemm.tuning.grouped_model import predicted_us  # noqa: E402
from fp8gemm.tuning.grouped_problem import GroupedProblem  # noqa: E402
from fp8gemm.tuning.hopper import named_chip  # noqa: E402
from fp8gemm.tuning.problem import Grouping, Problem  # noqa: E402
from fp8gemm.tuning.select import select_config  # noqa: E402

CONFIGS = ROOT / "tests" / "data" / "configs"
BF16 = 2
TP, EP = (2, 4, 8), (8, 64)


@dataclass(frozen=True)
class Assumptions:
    """What the answer depends on, each an option.

    Attributes:
        nvlink_gbs: rate of a GPU's links within a node, GB/s in each direction.
        nvlink_share: the part of it that collectives reach.
        ib_gbs: rate of a GPU's network card, GB/s in each direction.
        ib_share: the part of it that an exchange reaches.
        latency_us: of a collective within a node, however little it sends.
        ib_latency_us: of one between nodes.
        node: GPUs that NVLink connects.
        overlap: the part of a gather or exchange that is hidden behind the product beside it, where it is not longer.
        top_k: experts of a token.
    """

    nvlink_gbs: float = 450.0
    nvlink_share: float = 0.6
    ib_gbs: float = 50.0
    ib_share: float = 0.8
    latency_us: float = 25.0
    ib_latency_us: float = 40.0
    node: int = 8
    overlap: float = 0.7
    top_k: int = 8

    def within(self, sent: float) -> float:
        """Microseconds in which a rank sends so many bytes to others of its node, or 0 bytes in no time."""
        return self.latency_us + sent / (self.nvlink_gbs * self.nvlink_share * 1e3) if sent else 0.0

    def exchanged(self, sent: float, ranks: int) -> float:
        """Microseconds in which a rank sends so many bytes, as much to each of the others; links work at once."""
        if ranks <= self.node:
            return self.within(sent * (ranks - 1) / ranks)
        outside = self.ib_latency_us + sent * (ranks - self.node) / ranks / (self.ib_gbs * self.ib_share * 1e3)
        return max(self.within(sent * (self.node - 1) / ranks), outside)


MEASURED: tuple[tuple[str, int, int, float], ...] = (
    ("all-reduce", 512, BF16, 47),
    ("all-reduce", 4096, BF16, 247),
    ("all-reduce", 8192, BF16, 466),
    ("all-gather", 512, BF16, 54),
    ("all-gather", 4096, BF16, 290),
    ("all-gather", 8192, BF16, 551),
    ("all-gather", 512, 1, 36),
    ("all-gather", 4096, 1, 159),
    ("all-gather", 8192, 1, 292),
    ("reduce-scatter", 8192, BF16, 309),
)
"""Name, rows, bytes of an element and microseconds of collectives of (rows, 8192) on two H200s of one host: NCCL
without NVLS, torch 2.11, 2026-11. A gather is of so many rows of each rank."""
OVERLAPPED = {"gather_then_multiply_us": 1730, "fused_us": 1510, "multiply_us": 1426}
"""bfloat16, 8192 x 8192 x 8192 out of two halves, `fused_all_gather_matmul` of torch 2.11's symmetric memory, there."""


def all_reduce(size: float, ranks: int, given: Assumptions) -> float:
    """Of a tensor of so many bytes on each rank."""
    return given.within(2 * size * (ranks - 1) / ranks)


def gather(size: float, ranks: int, given: Assumptions) -> float:
    """To so many bytes, of which each rank has its part; a reduce-scatter of them sends as much."""
    return given.within(size * (ranks - 1) / ranks)


def row_bytes(k: int) -> int:
    """A row that is quantised, with its scales and what is left to a boundary of 16 bytes."""
    return -(-(k + 4 * -(-k // 128)) // 16) * 16


def product_us(m: int, n: int, k: int, chip: str) -> float:
    problem = Problem(m, n, k)
    return predict_config(problem, select_config(problem, named_chip(chip)), named_chip(chip)).total_us


def grouped_us(groups: int, m: int, n: int, k: int, chip: str) -> float:
    problem = GroupedProblem(Grouping.CONTIGUOUS, groups, max(1, m), n, k)
    counted = replace(problem, m=problem.counted_m)
    return predicted_us(counted, select_grouped(problem, named_chip(chip)), named_chip(chip))


def hidden_behind(sent: float, product: float, given: Assumptions) -> float:
    """What is left of the time of sending beside a product."""
    return sent - given.overlap * min(sent, product)


def tensor_parallel(config: Mapping[str, Any], m: int, ranks: int, chip: str, given: Assumptions) -> dict[str, float]:
    """Microseconds of the linear layers of a decoder layer for M tokens, by the way that its sums and rows travel."""
    layers = {each.name: each for each in linears_of_config(config, tp=ranks, merged=True)}
    times = {name: product_us(m, each.n, each.k, chip) for name, each in layers.items()}
    products = sum(times.values())
    if ranks == 1:
        return {"products": products}
    hidden = int(config["hidden_size"])
    bf16, codes = m * hidden * BF16, m * row_bytes(hidden)
    scatter = 2 * gather(bf16, ranks, given)
    gathered = gather(codes, ranks, given)
    beside = sum(hidden_behind(gathered, times[name], given) for name in ("qkv_proj", "gate_up_proj"))
    behind = sum(hidden_behind(scatter / 2, times[name], given) for name in ("o_proj", "down_proj"))
    return {
        "products": products,
        "all_reduce": products + 2 * all_reduce(bf16, ranks, given),
        "bf16_gather": products + 2 * gather(bf16, ranks, given) + scatter,
        "fp8_gather": products + 2 * gathered + scatter,
        "overlapped": products + beside + behind,
    }


def expert_parallel(config: Mapping[str, Any], t: int, ranks: int, chip: str, given: Assumptions) -> dict[str, float]:
    """Microseconds of the experts of a layer, T tokens a rank, by the way that rows travel to them."""
    up, down = experts_of_config(config, ep=ranks)
    hidden, rows = up.k, t * given.top_k
    times = [grouped_us(each.groups, round(rows / each.groups), each.n, each.k, chip) for each in (up, down)]
    products = sum(times)
    back = given.exchanged(rows * hidden * BF16, ranks)
    out = {
        kind: given.exchanged(rows * size, ranks)
        for kind, size in (("bf16", hidden * BF16), ("fp8", row_bytes(hidden)))
    }
    return {
        "products": products,
        "bf16_exchange": products + out["bf16"] + back,
        "fp8_exchange": products + out["fp8"] + back,
        "overlapped": products + hidden_behind(out["fp8"], times[0], given) + hidden_behind(back, times[1], given),
    }


def checked(given: Assumptions) -> Iterator[dict[str, Any]]:
    """What the formulas say of the collectives that were measured."""
    kinds = {"all-reduce": all_reduce, "all-gather": gather, "reduce-scatter": gather}
    for name, rows, size, us in MEASURED:
        all_rows = rows * (2 if name == "all-gather" else 1)
        predicted = kinds[name](all_rows * 8192 * size, 2, given)
        yield {"collective": name, "rows": rows, "element_bytes": size, "measured_us": us, "model_us": predicted}


def results(options: argparse.Namespace, given: Assumptions) -> dict[str, Any]:
    """What is written: the assumptions, and every case."""
    dense, sparse = (read_config(path) for path in (options.dense, options.sparse))
    alone = {m: tensor_parallel(dense, m, 1, options.chip, given)["products"] for m in options.m}
    least = min(EP)
    return {
        "date": datetime.date.today().isoformat(),
        **provenance(),
        "chip": options.chip,
        "assumptions": asdict(given),
        "tensor_parallel": {
            "model": options.dense.stem,
            "rows": [
                {
                    "m": m,
                    "ranks": ranks,
                    "alone_us": alone[m],
                    "us": tensor_parallel(dense, m, ranks, options.chip, given),
                }
                for m in options.m
                for ranks in TP
            ],
        },
        "expert_parallel": {
            "model": options.sparse.stem,
            "least_ranks": least,
            "rows": [
                {"t": t, "ranks": ranks, "us": expert_parallel(sparse, t, ranks, options.chip, given)}
                for t in options.tokens
                for ranks in EP
            ],
        },
        "check": list(checked(given)),
        "overlapped": OVERLAPPED,
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """For people: a line for each case, in microseconds and beside fewer ranks."""
    for row in result["tensor_parallel"]["rows"]:
        speedups = "  ".join(f"{name} {row['alone_us'] / us:.2f}x" for name, us in row["us"].items())
        yield f"{result['tensor_parallel']['model']}  M {row['m']}  TP-{row['ranks']}: {speedups}"
    for row in result["expert_parallel"]["rows"]:
        times = "  ".join(f"{name} {us:.0f} us" for name, us in row["us"].items())
        yield f"{result['expert_parallel']['model']}  T {row['t']}  EP-{row['ranks']}: {times}"
    for row in result["check"]:
        off = row["model_us"] / row["measured_us"] - 1
        yield f"{row['collective']} of {row['rows']} rows: {row['measured_us']} us measured, model {off:+.0%}"


def rounded(found: Any) -> Any:
    """Times to a tenth of a microsecond, which is more than a prediction knows."""
    if isinstance(found, dict):
        return {name: rounded(each) for name, each in found.items()}
    if isinstance(found, list):
        return [rounded(each) for each in found]
    return round(found, 1) if isinstance(found, float) and found >= 1 else found


def _divides(name: str) -> bool:
    return name.endswith(("_gbs", "_share"))


def _number(text: str) -> float:
    value = float(text) if text.replace(".", "", 1).isdigit() else -1.0
    if value < 0:
        raise InputError(f"expected a number of at least 0, got {quoted(text)}")
    return value


def _number_above(text: str) -> float:
    if not (value := _number(text)):
        raise InputError(f"expected a number above 0, got {quoted(text)}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, print and write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--dense", type=Path, default=CONFIGS / "llama-3.1-70b.json", metavar="FILE", help="config.json"
    )
    parser.add_argument("--sparse", type=Path, default=CONFIGS / "deepseek-v3.json", metavar="FILE", help="config.json")
    parser.add_argument("--chip", default="h200", help="of the products, default h200")
    parser.add_argument(
        "--m", type=parse_m, default=[16, 128, 1024, 8192], metavar="M,...", help="tokens, of all ranks"
    )
    parser.add_argument("--tokens", type=parse_m, default=[16, 128, 1024, 4096], metavar="T,...", help="of each rank")
    for field in fields(Assumptions):
        read = parse_positive if isinstance(field.default, int) else _number_above if _divides(field.name) else _number
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=Words(read), default=field.default, help=f"default {field.default}")
    add_json(parser)
    options = parser.parse_args(arguments)
    given = Assumptions(**{field.name: getattr(options, field.name) for field in fields(Assumptions)})
    try:
        found = rounded(results(options, given))
    except (InputError, UnsupportedError) as error:
        parser.error(str(error))
    with apart(options):
        print("\n".join(lines(found)))
    tell_json(options, found)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
