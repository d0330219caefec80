"""The table of a profile: what was measured, and beside it what the design expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fp8gemm.lab.profiling import counters
from fp8gemm.lab.profiling.counters import Counters
from fp8gemm.lab.profiling.expected import Expected
from fp8gemm.lab.profiling.sustained import Sustained
from fp8gemm.terminal.table import Column, Table, fitted
from fp8gemm.tuning.problem import Problem

_STALLS = 6


@dataclass(frozen=True)
class Line:
    """One figure. ``expected`` is None where the design says nothing, and then ``why`` is what there is to know."""

    name: str
    value: float
    unit: str
    expected: float | None = None
    why: str = ""


def sustained_lines(problem: Problem, run: Sustained, expected: Expected) -> Iterator[Line]:
    """Of graph replay."""
    yield Line("time per call", run.us, "us", expected.model_us, "the cost model")
    yield Line("speed", problem.flops / run.us / 1e6, "TFLOPS")
    if run.mhz is not None:
        ideal = expected.busiest_tensor_cycles / run.mhz
        yield Line("SM clock", run.mhz, "MHz")
        yield Line("share of tensor peak", 100 * ideal / run.us, "%", 100.0, "busiest SM, at this clock")
    if run.watts is not None and run.joules is not None:
        yield Line("power", run.watts, "W")
        yield Line("energy per call", 1e3 * run.joules, "mJ")
        yield Line("energy per operation", 1e12 * run.joules / problem.flops, "pJ/FLOP")


def counter_lines(read: Counters, expected: Expected) -> Iterator[Line]:
    """Of one launch under ncu, with cold caches."""
    values = read.values
    microseconds, cycles = values.get(counters.DURATION), values.get(counters.CYCLES)
    if microseconds is not None:
        yield Line("duration", microseconds, "us", expected.model_us, "the cost model; caches are cold here")
        if cycles is not None:
            yield Line("SM clock", cycles / microseconds, "MHz", why="one launch runs faster than sustained load")
    yield from _tensor_lines(read, expected)
    for name, metric, amount, why in (
        ("L2 to SMs", counters.TO_SM, expected.bytes_into_sms, "rows and columns of all tiles, and scales"),
        ("  of it by TMA", counters.TO_SM_TMA, expected.bytes_into_sms, "the same"),
        ("SMs to L2", counters.FROM_SM, expected.output_bytes, "the output once"),
        (
            "through L2",
            counters.L2_BYTES,
            expected.bytes_out_of_l2 + expected.output_bytes,
            "multicast counted once, and the output; fills come on top",
        ),
        ("DRAM read", counters.DRAM_READ, expected.least_dram_bytes, "each input once"),
        ("DRAM written", counters.DRAM_WRITE, expected.output_bytes, "the output once, less what stays in L2"),
    ):
        if metric in values:
            yield Line(name, values[metric] / 1e6, "MB", amount / 1e6, why)
    if counters.L2_HIT_RATE in values:
        yield Line("L2 hit rate", values[counters.L2_HIT_RATE], "%")
    if counters.ISSUE_ACTIVE in values:
        yield Line("issue slots used", values[counters.ISSUE_ACTIVE], "%")
    for reason, share in read.stalls()[:_STALLS]:
        yield Line(f"stalled: {reason}", 100 * share, "%", why="of all stalls of warps")


def _tensor_lines(read: Counters, expected: Expected) -> Iterator[Line]:
    active = read.values.get(counters.ACTIVE_CYCLES)
    busy = read.first(counters.TENSOR_ACTIVE)
    if active is not None:
        yield Line("active cycles per SM", active, "", expected.tensor_cycles, "tensor work alone, at full rate")
    if busy is not None:
        share = None if active is None else 100 * expected.tensor_cycles / active
        yield Line("tensor pipe active", busy, "%", share, "work at full rate / active cycles")
    instructions = read.first(counters.TENSOR_INSTRUCTIONS)
    if instructions is not None:
        yield Line("WGMMAs, by warp", instructions, "", expected.instructions, "tiles x K blocks x waves x 4 x 4")


def render(lines: Sequence[Line]) -> str:
    """For people: figure, expectation, ratio."""
    rows = []
    for line in lines:
        unit = f" {line.unit}" if line.unit else ""
        expected = "" if line.expected is None else _figure(line.expected) + unit
        ratio = f"{line.value / line.expected:.3f}" if line.expected else ""
        rows.append((line.name, _figure(line.value) + unit, expected, ratio, line.why))
    figures = Column("measured"), Column("expected"), Column("ratio")
    table = Table(fitted([Column(left=True), *figures, Column(width=16, left=True)], rows), gap="  ")
    return "\n".join([table.header(), *(table.line(*row) for row in rows)])


def _figure(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def as_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The same for a file."""
    return [{name: value for name, value in asdict(line).items() if value not in (None, "")} for line in lines]
