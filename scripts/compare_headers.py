"""Times kernels as compiled from several sets of headers, in one process, and DeepGEMM's where that is installed.

For a change of device code that may cost no speed. Of few rows all take turns of a few milliseconds. From 512 rows on
each is measured alone, because the clock follows the power that a kernel draws, 20 to 60 ms late: in bursts (an idle
pause, then 2 ms of replays) and sustained (the second half of some hundred milliseconds of replays). Runs from a
checkout, on a Hopper GPU.

Exit code 0: measured. 1: some kernel of some headers gives other bits. 2: no Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from fp8gemm.benchmark.timing import schedule  # noqa: E402
from fp8gemm.dispatch import current_stream, device_chip  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, device_info, diagnose  # noqa: E402
from fp8gemm.families.catalogue import kernel_request, load_kernel  # noqa: E402
from fp8gemm.families.grouped import GroupedKernel, GroupedOperands  # noqa: E402
from fp8gemm.families.grouped import kernel_request as grouped_request  # noqa: E402
from fp8gemm.jit.compiler import nvrtc_version  # noqa: E402
from fp8gemm.jit.parallel import build_many  # noqa: E402
from fp8gemm.jit.request import KernelRequest  # noqa: E402
from fp8gemm.scales import empty_mn_major  # noqa: E402
from fp8gemm.tuning.grouped import select_grouped  # noqa: E402
from fp8gemm.tuning.grouped_problem import GroupedProblem  # noqa: E402
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Problem, Scaling, StoreKind  # noqa: E402
from fp8gemm.tuning.select import Config, select_config  # noqa: E402
from tests.mutations import tree  # noqa: E402

EXIT_OTHER_BITS, EXIT_NO_DEVICE = 1, 2
NEW, DEEP_GEMM = "new", "deepgemm"
NK = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
FEW, MANY = (1, 16, 64, 128), (512, 777, 1024, 2048, 4096, 8192)
ALONE_FROM = 512
IDLE_S, BURST_US, BURSTS = 0.04, 2_000.0, 7
SUSTAINED_S, SUSTAINED = 0.24, 2
TURN_US, TURNS = 1_500.0, 25

Call = Callable[[], object]
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A product, and what launches it.

    Attributes:
        name: what it is, with its tile config.
        m: rows; what decides how it is timed.
        calls: makes a launch for each set of operands, of the kernel that the headers in force give.
        out: what is written.
        us: that a launch takes, about.
        deep_gemm: makes the peer's launches; None where it has no such product.
    """

    name: str
    m: int
    calls: Callable[[], list[Call]]
    out: Tensor
    us: float
    deep_gemm: Callable[[], list[Call]] | None = None


def codes(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda").to(torch.float8_e4m3fn)


def block_scales(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda") + 0.5


def row_scales(rows: int, blocks: int) -> Tensor:
    return empty_mn_major(rows, blocks, device=torch.device("cuda")).uniform_(0.5, 2.0)


def stream() -> int:
    return current_stream(0)


@dataclass(frozen=True)
class Single:
    """One product. The sets of operands exceed three times L2."""

    problem: Problem

    @property
    def config(self) -> Config:
        return select_config(self.problem, device_chip(0))

    @property
    def request(self) -> KernelRequest:
        return kernel_request(self.problem, self.config)

    @property
    def name(self) -> str:
        problem = self.problem
        kind = "1d1d" if problem.scaling is Scaling.ROW else "1d2d"
        added = " +c" if problem.c is not Addend.NONE else ""
        return f"{kind} {problem.m}x{problem.n}x{problem.k} {self.config.label} {problem.store.value}{added}"

    def case(self) -> Case:
        problem, config = self.problem, self.config
        m, n, k = problem.m, problem.n, problem.k
        plan = schedule(m, n, k, l2_bytes=device_info(0).l2_bytes, measure_us=TURN_US)
        blocks, of_rows = -(-k // 128), problem.scaling is Scaling.ROW

        def scales_of_b() -> Tensor:
            return row_scales(n, blocks) if of_rows else block_scales(-(-n // 128), blocks)

        sets = [(codes(m, k), row_scales(m, blocks), codes(n, k), scales_of_b()) for _ in range(plan.sets)]
        out = torch.zeros(m, n, dtype=getattr(torch, problem.output.value), device="cuda")
        adds = {"c": out} if problem.c is not Addend.NONE else {}

        def calls() -> list[Call]:
            kernel = load_kernel(problem, config, device_index=0, num_sms=device_chip(0).num_sms)

            def launch(*terms: Tensor) -> None:
                kernel(*terms, out=out, stream=stream(), **adds)

            return [partial(launch, *terms) for terms in sets]

        def deep_gemm() -> list[Call]:
            import deep_gemm

            options = adds | ({"recipe": (1, 1, 128)} if of_rows else {})
            return [partial(deep_gemm.fp8_gemm_nt, terms[:2], terms[2:], out, **options) for terms in sets]

        us = max(2 * m * n * k / 1.2e9, (m + n) * k / 4e6, 4.0)
        return Case(self.name, m, calls, out, us, deep_gemm if problem.store is StoreKind.TMA else None)


@dataclass(frozen=True)
class Groups:
    """Groups of equal size, of ``rows`` rows or columns; with masked ones there is room for ``room``."""

    problem: GroupedProblem
    rows: int
    room: int

    @property
    def config(self) -> Config:
        return select_grouped(self.problem, device_chip(0))

    @property
    def request(self) -> KernelRequest:
        return grouped_request(self.problem, self.config)

    @property
    def name(self) -> str:
        problem = self.problem
        kind = f"{problem.grouping.value} {problem.groups} of {self.rows}"
        return f"{kind} {problem.n}x{problem.k} {self.config.label} {problem.store.value}"

    def case(self) -> Case:
        problem, config = self.problem, self.config
        operands, held = self._columns() if problem.grouping is Grouping.COLUMNS else self._rows()

        def calls() -> list[Call]:
            kernel = GroupedKernel(problem, config, device_index=0, num_sms=device_chip(0).num_sms)

            def launch() -> Tensor:
                kernel.bind(operands, stream())()
                return held  # addresses alone are bound

            return [launch]

        us = max(2 * operands.products / 1.2e9, operands.b.numel() / 4e6, 4.0)
        return Case(self.name, ALONE_FROM, calls, operands.out, us)

    def _columns(self) -> tuple[GroupedOperands, Tensor]:
        m, n, k, groups = self.problem.m, self.problem.n, self.problem.groups * self.rows, self.problem.groups
        ends = torch.arange(groups + 1, dtype=torch.int32, device="cuda") * self.rows
        operands = GroupedOperands(
            *(codes(m, k), row_scales(m, k // 128), codes(n, k), row_scales(n, k // 128)),
            out=torch.zeros(groups * m, n, device="cuda"),
            begins=ends.data_ptr(),
            ends=ends[1:].data_ptr(),
            rows=m,
            products=m * n * k,
        )
        return operands, ends

    def _rows(self) -> tuple[GroupedOperands, Tensor]:
        problem, room = self.problem, self.room
        groups, n, k, blocks = problem.groups, problem.n, problem.k, -(-problem.k // 128)
        masked = problem.grouping is Grouping.MASKED
        if masked:
            ends = torch.full((groups,), self.rows, dtype=torch.int32, device="cuda")
            scales_a = (torch.rand(groups, blocks, room, device="cuda") + 0.5).transpose(1, 2)
        else:
            ends = torch.arange(1, groups + 1, dtype=torch.int32, device="cuda") * self.rows
            scales_a = row_scales(groups * room, blocks)
        operands = GroupedOperands(
            *(codes(groups * room, k), scales_a, codes(groups * n, k), block_scales(groups, -(-n // 128), blocks)),
            out=torch.zeros(groups * room, n, dtype=getattr(torch, problem.output.value), device="cuda"),
            begins=0,
            ends=ends.data_ptr(),
            rows=room if masked else groups * room,
            products=groups * self.rows * n * k,
        )
        return operands, ends


def products() -> Iterator[Single | Groups]:
    for m, (n, k) in itertools.product((*FEW, *MANY), NK):
        yield Single(Problem(m, n, k))
    of_rows = Problem(4096, 7168, 4096, OutputType.FLOAT32, scaling=Scaling.ROW)
    for (n, k), c in itertools.product(((7168, 4096), (2112, 4096), (1536, 24576)), (Addend.NONE, Addend.FLOAT32)):
        yield Single(replace(of_rows, n=n, k=k, c=c))
    for m, n, k in ((4096, 577, 7168), (8192, 2111, 512), (8192, 65, 128)):
        yield Single(Problem(m, n, k, store=StoreKind.PREDICATED))
    contiguous, masked = Grouping.CONTIGUOUS, Grouping.MASKED
    columns = GroupedProblem(Grouping.COLUMNS, 4, 4096, 7168, 128, OutputType.FLOAT32)
    yield Groups(GroupedProblem(contiguous, 4, 8192, 4096, 4096), 8192, 8192)
    yield Groups(GroupedProblem(contiguous, 8, 4096, 7168, 3072), 4096, 4096)
    yield Groups(GroupedProblem(masked, 32, 192, 6144, 7168), 192, 1024)
    yield Groups(GroupedProblem(masked, 6, 20, 7168, 3072), 20, 1024)
    yield Groups(columns, 8192, 0)
    yield Groups(replace(columns, c=Addend.FLOAT32), 8192, 0)


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


def measure(case: Case, headers: dict[str, Path]) -> Row:
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
        regimes = {"burst": (BURSTS, Graph.burst), "sustained": (SUSTAINED, Graph.sustained)}
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
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the times here")
    parser.add_argument("--commit", default="", help="of these headers, for the file")
    parser.add_argument("--only", default="", help="products whose name has this text")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin none after this many")
    options = parser.parse_args()
    diagnosis = diagnose()
    if diagnosis.status is not DeviceStatus.READY:
        print(diagnosis, file=sys.stderr)
        return EXIT_NO_DEVICE
    started, rows = time.monotonic(), list[Row]()
    headers = {NEW: tree.INCLUDE}
    headers |= {name: Path(place).resolve() for name, _, place in (each.partition("=") for each in options.headers)}
    wanted = [product for product in products() if options.only in product.name]
    for include in headers.values():
        tree.use(include)
        build_many([product.request for product in wanted])
    result = {
        "gpu": torch.cuda.get_device_name(0),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "nvrtc": nvrtc_version(),
        "commit": options.commit,
        "rows": rows,
    }
    for product in wanted:
        if time.monotonic() - started < options.seconds:
            rows.append(measure(product.case(), headers))
            print(shown(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(*summary(rows, [*list(headers)[1:], DEEP_GEMM]), sep="\n")
    return 0 if all(row["same_bits"] for row in rows) else EXIT_OTHER_BITS


if __name__ == "__main__":
    sys.exit(main())
