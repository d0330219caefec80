"""Grouped products and layers of experts: measured in turn, as a table, as JSON and judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fp8gemm.lab.bench import grouped_layer as layers
from fp8gemm.lab.bench import grouped_products as products
from fp8gemm.lab.bench.gates import Gate, Gates
from fp8gemm.lab.bench.graph import GraphTimer, Rounds
from fp8gemm.lab.bench.grouped_cases import CONTIGUOUS, DECODE, K_GROUPED, LAYER, MASKED, GroupedCase
from fp8gemm.lab.bench.grouped_operands import FLOOR, Contender, Work
from fp8gemm.lab.bench.grouped_peers import DEEP_GEMM
from fp8gemm.lab.bench.report import figure
from fp8gemm.lab.bench.timing import Schedule, Timings, describe, expected_us, rounded, schedule_sets
from fp8gemm.terminal.screen import screen
from fp8gemm.terminal.table import Column, Group, Table
from fp8gemm.tuning.grouped import select_grouped
from fp8gemm.tuning.hopper import Chip

METHOD = (
    "CUDA-graph replay over rotating operand sets, at least two and larger than three times L2, microseconds per call; "
    "each result is compared with the product of the dequantised operands before it is timed; {how}"
)


@dataclass(frozen=True)
class Part:
    """One kind of grouped product.

    Attributes:
        prepare: operands and what is done with them, of a case, on a generator's device, for so large an L2, with
            those of other libraries' that are named.
        ours: those whose time must be there.
    """

    prepare: Callable[[GroupedCase, torch.Generator, int, Collection[str]], Work]
    ours: tuple[str, ...]


PARTS: Mapping[str, Part] = {
    CONTIGUOUS: Part(products.contiguous, (products.OFFSETS, products.INDICES)),
    MASKED: Part(products.masked, (products.IN_MASK,)),
    DECODE: Part(products.decode, (products.OFFSETS, products.IN_MASK)),
    K_GROUPED: Part(products.by_columns, (products.BY_COLUMNS, products.ACCUMULATE)),
    LAYER: Part(layers.layer, (layers.OURS,)),
}


@dataclass(frozen=True)
class GroupedRow(Timings):
    """What was measured for one case, by contender.

    Attributes:
        flops: of one call.
        weight_bytes: FP8 weights that one call reads.
        configs: labels of our configs.
        sets: operand sets that the calls rotated over.
    """

    case: GroupedCase
    flops: int = 0
    weight_bytes: int = 0
    configs: Sequence[str] = ()
    sets: int = 0

    @property
    def lacks(self) -> bool:
        """Whether something of ours has no time."""
        return not set(PARTS[self.case.part].ours) <= self.us.keys()

    def as_json(self) -> dict[str, Any]:
        """Rounded, for people and for later comparison."""
        case = self.case
        row: dict[str, Any] = {"part": case.part, "groups": case.groups, "m": case.m, "n": case.n, "k": case.k}
        row |= {"max_m": case.max_m} if case.max_m else {}
        row |= {"touched": case.touched, "sizes": case.sizes()} if case.touched else {}
        row |= {"us": rounded(self.us, 2), "spread": rounded(self.spread, 4), "flops": self.flops}
        row |= {"weight_bytes": self.weight_bytes, "configs": list(self.configs), "sets": self.sets}
        return row | self.circumstances()


class GroupedTable:
    """One row per case: microseconds of each contender, and how ours compare."""

    def __init__(self) -> None:
        self._table = Table(
            Group((Column("", 11), Column("groups x M x N x K", 42))),
            Group((Column("TFLOPS"), Column("GB/s", 6))),
            Group((Column("microseconds", 24, left=True),)),
        )
        self.remark = self._table.remark

    def header(self) -> str:
        """What stands in brackets, and the columns' names."""
        what = "GB/s: of weights; dense, bf16, deepgemm: speed relative to it; floor: time over that of reading weights"
        return f"{screen().fill(what)}\n{self._table.header()}"

    def line(self, row: GroupedRow) -> str:
        """One row; contenders without a time are left out."""
        part = PARTS[row.case.part]
        first = next((row.us[name] for name in part.ours if name in row.us), None)
        done = row.flops / 1e6, row.weight_bytes / 1e3
        rates = [figure(None if first is None else each / first, 0) for each in done]
        times = ", ".join(f"{name} {us:.2f}{_compared(row, part, name)}" for name, us in row.us.items())
        return self._table.line(row.case.part, row.at(row.case), *rates, times)


def _compared(row: GroupedRow, part: Part, name: str) -> str:
    """What the first of ours, or each of ours, is to another one, in brackets."""
    ratio = None
    if name in part.ours:
        ratio = row.time_ratio(name, FLOOR)
    elif name != FLOOR:
        ratio = row.time_ratio(name, part.ours[0])
    return "" if ratio is None else f" ({ratio:.3f})"


class GroupedBench:
    """Measures one case after another.

    Args:
        generator: of the operands, on the GPU.
        rounds: who measures.
        chip: the GPU's, which configs are chosen for.
        l2_bytes: of that GPU.
        measure_us: length of one measurement.
        others: names of other libraries' products to measure beside ours.
    """

    def __init__(
        self,
        generator: torch.Generator,
        rounds: Rounds,
        chip: Chip,
        *,
        l2_bytes: int,
        measure_us: float,
        others: Collection[str] = (),
    ) -> None:
        self._generator, self._rounds, self._chip = generator, rounds, chip
        self._l2_bytes, self._measure_us, self._others = l2_bytes, measure_us, others

    def measure(self, case: GroupedCase, only: Collection[str] | None = None) -> Iterator[GroupedRow]:
        """Check and time every contender, or those of these names: a row for each regime."""
        torch.cuda.empty_cache()  # the last case's blocks rarely fit this one
        part = PARTS[case.part]
        try:
            work = part.prepare(case, self._generator, self._l2_bytes, self._others)
        except Exception as error:  # NOTE: operands may not fit this GPU, and the other cases' times stand without them
            yield GroupedRow(case, us={}, failed=dict.fromkeys(part.ours, describe(error)))
            return
        us = expected_us(work.flops, work.weight_bytes)
        plan = schedule_sets(work.sets, us, measure_us=self._measure_us)
        prepare = {
            name: partial(_timer, contender, plan)
            for name, contender in work.contenders.items()
            if only is None or name in only
        }
        configs = [select_grouped(problem, self._chip).label for problem in case.problems()]
        for timings in self._rounds.measure_each(prepare, case.rows):
            yield GroupedRow(case, work.flops, work.weight_bytes, configs, work.sets, **vars(timings))


def _timer(contender: Contender, plan: Schedule) -> GraphTimer:
    calls = contender.prepare()
    result = calls[0]()
    if contender.check is not None:
        contender.check(result)
    del result
    return GraphTimer(calls, plan)


def _ratios(
    rows: Sequence[GroupedRow], part: str, over: Sequence[str], under: Sequence[str]
) -> dict[str, float | None]:
    """Times over times, by case and contender, of those cases of a part where all groups have rows."""
    of_part = [row for row in rows if row.case.part == part and row.case.touched == row.case.groups]
    pairs = ((row, one, other) for row in of_part for one in over for other in under)
    return {row.at(f"{row.case} {one} over {other}"): row.time_ratio(one, other) for row, one, other in pairs}


def _layers(rows: Sequence[GroupedRow], groups: int, tokens: Collection[int]) -> Iterator[GroupedRow]:
    """Layers of so many experts for these numbers of tokens."""
    for row in rows:
        if row.case.part == LAYER and row.case.groups == groups and row.case.m in tokens:
            yield row


GATES: Gates[GroupedRow] = Gates(
    (
        Gate(
            "contiguous, speed relative to one product",
            0.9,
            lambda rows: _ratios(rows, CONTIGUOUS, [products.DENSE], [products.OFFSETS]),
        ),
        Gate(
            "contiguous, speed relative to DeepGEMM",
            1.0,
            lambda rows: _ratios(rows, CONTIGUOUS, [DEEP_GEMM], [products.OFFSETS, products.INDICES]),
        ),
        Gate(
            "k-grouped, speed relative to DeepGEMM",
            1.0,
            lambda rows: _ratios(rows, K_GROUPED, [DEEP_GEMM], [products.ACCUMULATE]),
        ),
        Gate(
            "decode, time over that of reading the weights",
            1.35,
            lambda rows: _ratios(rows, DECODE, [products.OFFSETS, products.IN_MASK], [FLOOR]),
            at_least=False,
        ),
        Gate(
            "layers of 256 experts, microseconds of one token",
            90.0,
            lambda rows: {row.at(str(row.case)): row.us.get(layers.OURS) for row in _layers(rows, 256, (1,))},
            at_least=False,
        ),
        Gate(
            "layers of 256 experts, time of 16 and 64 tokens over that of reading the weights",
            1.12,
            lambda rows: {
                row.at(str(row.case)): row.time_ratio(layers.OURS, FLOOR) for row in _layers(rows, 256, (16, 64))
            },
            at_least=False,
        ),
        Gate(
            "layers of 128 experts, speed of 4096 tokens relative to bfloat16",
            1.3,
            lambda rows: {
                row.at(str(row.case)): row.time_ratio(layers.IN_BF16, layers.OURS)
                for row in _layers(rows, 128, (4096,))
            },
        ),
    )
)
