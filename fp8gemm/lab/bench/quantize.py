"""The quantise functions beside a device-to-device copy that moves as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fp8gemm.lab.bench.gates import Gate, Gates
from fp8gemm.lab.bench.graph import GraphTimer, Rounds
from fp8gemm.lab.bench.quantize_cases import CASES, Case, Size
from fp8gemm.lab.bench.timing import Timer, Timings, rounded, schedule_bytes
from fp8gemm.terminal.table import Column, Group, Table

MANY, FEW = 2048, 64
"""At this M and above the share of a copy's speed is judged, at this one and below the time."""
COPY = "copy_"
METHOD = (
    "CUDA-graph replay over rotating operand sets, larger than three times L2 where 256 sets are, peers in turn in an "
    "order drawn for each round, median of {rounds}, microseconds per call; the copy beside each reads half as many "
    "bytes as the function reads and writes, and writes the other half"
)


SMALL_K = 7168
MANY_M, MANY_K = (2048, 4096, 8192), (2048, 7168, 16384)


def sizes(ms: Sequence[int] | None = None, ks: Sequence[int] | None = None) -> list[Size]:
    """Every M with every distinct K; by default few rows of one K, and many rows of several."""
    if ms is None and ks is None:
        few = [Size(m, SMALL_K) for m in (1, 2, 4, 8, 16, 32, 64)]
        return few + [Size(m, k) for m in MANY_M for k in MANY_K]
    return [Size(m, k) for m in ms or MANY_M for k in dict.fromkeys(ks or MANY_K)]


@dataclass(frozen=True)
class QuantizeRow(Timings):
    """What was measured for one size, by case.

    Attributes:
        copy_us: median microseconds of the copy beside each.
        moved: bytes that one call reads and writes.
    """

    size: Size
    copy_us: Mapping[str, float]
    moved: Mapping[str, int]

    def share(self, case: str) -> float | None:
        """Speed relative to the copy; None unless both were timed."""
        return self.copy_us[case] / self.us[case] if case in self.us and case in self.copy_us else None

    def as_json(self) -> dict[str, Any]:
        """Rounded, for people and for later comparison."""
        row: dict[str, Any] = {"m": self.size.m, "k": self.size.k}
        row |= {"us": rounded(self.us, 3), "copy_us": rounded(self.copy_us, 3)}
        row |= {"bytes": dict(self.moved), "spread": rounded(self.spread, 4)}
        return row | self.circumstances()


class QuantizeTable:
    """One row per size: microseconds of each case, and its share of the copy's speed."""

    def __init__(self) -> None:
        cases = tuple(Column(case.name, 16) for case in CASES)
        title = "microseconds, and share of the speed of copying as many bytes"
        self._table = Table(Group((Column("M", 6), Column("K", 5))), Group(cases, title))
        self.header, self.remark = self._table.header, self._table.remark

    def line(self, row: QuantizeRow) -> str:
        """One row; a dash where a case has no time."""
        return self._table.line(str(row.size.m), str(row.size.k), *(_cell(row, case.name) for case in CASES))


def _cell(row: QuantizeRow, case: str) -> str:
    share = row.share(case)
    return f"{row.us[case]:.2f}" + ("" if share is None else f" {share:6.1%}") if case in row.us else "-"


class QuantizeBench:
    """Measures one size after another.

    Args:
        generator: of the operands, on the GPU.
        rounds: who measures.
        l2_bytes: of that GPU.
        measure_us: length of one measurement.
    """

    def __init__(self, generator: torch.Generator, rounds: Rounds, *, l2_bytes: int, measure_us: float) -> None:
        self._generator, self._rounds = generator, rounds
        self._l2_bytes, self._measure_us = l2_bytes, measure_us

    def measure(self, size: Size) -> QuantizeRow:
        """Time every case and the copy beside it."""
        torch.cuda.empty_cache()  # the last size's blocks rarely fit this one
        moved: dict[str, int] = {}

        def case_timer(case: Case) -> Timer:
            first = case.inputs(size, self._generator)
            moved[case.name] = case.check(first)
            plan = schedule_bytes(moved[case.name], l2_bytes=self._l2_bytes, measure_us=self._measure_us)
            inputs = [first, *(case.inputs(size, self._generator) for _ in range(plan.sets - 1))]
            return GraphTimer([partial(case.call, each) for each in inputs], plan)

        def copy_timer(case: Case) -> Timer:
            plan = schedule_bytes(moved[case.name], l2_bytes=self._l2_bytes, measure_us=self._measure_us)
            pairs = [self._halves(moved[case.name]) for _ in range(plan.sets)]
            return GraphTimer([partial(target.copy_, source) for target, source in pairs], plan)

        prepare: dict[str, Callable[[], Timer]] = {}
        for case in CASES:
            prepare[case.name] = partial(case_timer, case)
            prepare[COPY + case.name] = partial(copy_timer, case)
        timings = self._rounds.measure(prepare)
        names = [case.name for case in CASES]
        of_cases = timings.only(names)
        copy_us = {name: timings.us[COPY + name] for name in names if COPY + name in timings.us}
        return QuantizeRow(size, copy_us, moved, **vars(of_cases))

    def _halves(self, moved: int) -> tuple[Tensor, Tensor]:
        """Where to and where from, together as many bytes."""
        source = torch.empty(max(moved // 2, 1), dtype=torch.uint8, device=self._generator.device)
        source.random_(generator=self._generator)
        return torch.empty_like(source), source


_JUDGED = [case.name for case in CASES if not case.transposes]


def _shares(rows: Sequence[QuantizeRow]) -> dict[str, float | None]:
    return {f"{name} {row.size}": row.share(name) for row in rows for name in _JUDGED if row.size.m >= MANY}


def _microseconds(rows: Sequence[QuantizeRow]) -> dict[str, float]:
    few = [row for row in rows if row.size.m <= FEW]
    return {f"{name} {row.size}": us for row in few for name, us in row.us.items() if name in _JUDGED}


GATES = Gates(
    (
        Gate(f"share of a copy's speed at M >= {MANY}", 0.8, _shares),
        Gate(f"microseconds at M <= {FEW}", 3.0, _microseconds, at_least=False),
    )
)
