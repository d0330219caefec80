"""Times kernels as compiled from several sets of headers, in one process, and DeepGEMM's where that is installed.

For a change of device code that may cost no speed. Of few rows all take turns of a few milliseconds. From 512 rows on
each is measured alone, because the clock follows the power that a kernel draws, 20 to 60 ms late: in bursts (an idle
pause, then 2 ms of replays) and sustained (the second half of some hundred milliseconds of replays). Runs from a
checkout, on a Hopper GPU.

Exit code 0: measured. 1: some kernel of some headers gives other bits. 2: bad arguments. 3: no Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from compared_products import ALONE_FROM, Call, Case, products  # noqa: E402

from fp8gemm.cli.arguments import parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, note, prints_json, tell, tell_json  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, diagnose  # noqa: E402
from fp8gemm.jit.compiler import nvrtc_version  # noqa: E402
from fp8gemm.jit.parallel import build_many  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from tests.mutations import tree  # noqa: E402

NEW, DEEP_GEMM = "new", "deepgemm"
IDLE_S, BURST_US, BURSTS = 0.04, 2_000.0, 7
SUSTAINED_S, SUSTAINED = 0.24, 6
TURNS = 25

Row = dict[str, Any]


class Graph:
    """Many launches, replayed against the clock."""

    def __init__(self, calls: Sequence[Call], us: float) -> None:
        self.count = max(math.ceil(min(BURST_US / us, 400) / len(calls)), 1) * len(calls)
        self._calls, self._graph = calls, torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for call in calls:
                call()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, stream=side):
            for index in range(self.count):
                calls[index % len(calls)]()
        self.us = us

    def __call__(self, replays: int) -> float:
        """Microseconds of a launch, the first replay not counted."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._graph.replay()
        start.record()
        for _ in range(replays):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / (replays * self.count)

    def burst(self) -> float:
        time.sleep(IDLE_S)
        return self(1)

    def sustained(self) -> float:
        half = max(round(SUSTAINED_S / 2 * 1e6 / (self.us * self.count)), 1)
        for _ in range(half):
            self._graph.replay()
        return self(half)


def measure(case: Case, headers: dict[str, Path], sustained: int = SUSTAINED) -> Row:
    graphs: dict[str, Graph] = {}
    first, same = None, True
    for name, include in headers.items():
        tree.use(include)
        calls = case.calls()
        case.out.zero_()
        calls[0]()
        bits = case.out.clone().view(torch.uint8)
        torch.cuda.synchronize()  # the graphs' launches are on a stream of their own
        first = bits if first is None else first
        same = same and bool(torch.equal(first, bits))
        graphs[name] = Graph(calls, case.us)
    if case.deep_gemm is not None:
        try:
            graphs[DEEP_GEMM] = Graph(case.deep_gemm(), case.us)
        except Exception as error:  # NOTE: a peer that is not there, or cannot do this, must not end the run
            print(f"  {DEEP_GEMM}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
    for graph in graphs.values():
        graph.us = graph(1)
    regimes: dict[str, tuple[int, Callable[[Graph], float]]] = {"turns": (TURNS, lambda graph: graph(1))}
    if case.m >= ALONE_FROM:
        regimes = {"burst": (BURSTS, Graph.burst), "sustained": (sustained, Graph.sustained)}
    us: dict[str, dict[str, float]] = {}
    for regime, (rounds, take) in regimes.items():
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for index in range(rounds):
            for name in list(graphs)[:: 1 if index % 2 == 0 else -1]:
                samples[name].append(take(graphs[name]))
        us[regime] = {name: statistics.median(values) for name, values in samples.items()}
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
    parser.add_argument("--headers", action="append", required=True, metavar="NAME=DIR", help="others, to compare with")
    add_json(parser, ", again after each product")
    parser.add_argument("--commit", help="of these headers, where git cannot tell")
    parser.add_argument("--only", action="append", metavar="TEXT", help="products whose name has this text, or another")
    parser.add_argument("--sustained", type=parse_positive, default=SUSTAINED, help="samples of that regime, default 6")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin none after this many")
    options = parser.parse_args()
    diagnosis = diagnose()
    if diagnosis.status is not DeviceStatus.READY:
        note(f"compare_headers: {diagnosis.message}")
        return Exit.NO_GPU
    started, rows = time.monotonic(), list[Row]()
    headers = {NEW: tree.INCLUDE}
    headers |= {name: Path(place).resolve() for name, _, place in (each.partition("=") for each in options.headers)}
    wanted = [product for product in products() if any(each in product.name for each in options.only or [""])]
    for include in headers.values():
        tree.use(include)
        build_many([product.request for product in wanted])
    result = {
        "gpu": torch.cuda.get_device_name(0),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "nvrtc": nvrtc_version(),
        **provenance(options.commit, include=tree.INCLUDE),
        "sustained_samples": options.sustained,
        "rows": rows,
    }
    for product in wanted:
        if time.monotonic() - started < options.seconds:
            rows.append(measure(product.case(), headers, options.sustained))
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
