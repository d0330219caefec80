"""Which grouped products are measured, and how large their groups are. Nothing here touches a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.grouped_problem import GroupedProblem, grouped_problem
from fp8gemm.tuning.problem import Grouping, OutputType

CONTIGUOUS, MASKED, DECODE, K_GROUPED, LAYER = PARTS = ("contiguous", "masked", "decode", "k-grouped", "layer")
SIZES_SEED = 1
"""Of the sizes of groups, which are the same in every run."""
SPREAD = 0.3
"""A group has so much more or less than the typical one, at most."""
MOST_ROWS_OF_DECODE = 4
TOP_K = 8


def random_sizes(groups: int, typical: int, seed: int, unit: int = 1) -> list[int]:
    """Rows or columns of each group, whole units of them, about ``typical``, one unit at least; the same for a seed."""
    draw = random.Random(seed)
    return [max(round(typical * draw.uniform(1 - SPREAD, 1 + SPREAD) / unit), 1) * unit for _ in range(groups)]


@dataclass(frozen=True)
class GroupedCase:
    """What is measured in turn.

    Attributes:
        part: one of `PARTS`.
        groups: how many there are.
        m: rows of a typical group; with `K_GROUPED` those of A; with `LAYER` its tokens.
        n: rows of a group's B; with `LAYER` the hidden size.
        k: with `K_GROUPED` columns of a typical group; with `LAYER` the intermediate size.
        max_m: rows that a group has room for, in the masked layout.
        touched: groups that have rows.
    """

    part: str
    groups: int
    m: int
    n: int
    k: int
    max_m: int = 0
    touched: int = 0

    @property
    def rows(self) -> int:
        """Of A, of all groups together; with `LAYER` its tokens."""
        return self.m if self.part in (K_GROUPED, LAYER) else self.m * self.touched

    def __str__(self) -> str:
        if self.part == LAYER:
            return f"{self.groups}x({2 * self.k}x{self.n}+{self.n}x{self.k}) T={self.m}"
        if self.part == K_GROUPED:
            return f"{self.groups}x{self.m}x{self.n}x{self.k}"
        of_all = f"{self.touched} of " if self.touched < self.groups else ""
        return f"{of_all}{self.groups}x{self.m}x{self.n}x{self.k}"

    def sizes(self) -> list[int]:
        """Rows of each group that has some, or its columns; a layer has none."""
        groups = self.touched or self.groups
        if self.part == LAYER:
            return []
        if self.part == DECODE:
            draw = random.Random(SIZES_SEED)
            return [1 if groups < self.groups else draw.randint(1, MOST_ROWS_OF_DECODE) for _ in range(groups)]
        if self.part == K_GROUPED:
            return random_sizes(groups, self.k, SIZES_SEED, SCALE_BLOCK)
        return random_sizes(groups, self.m, SIZES_SEED)

    def problems(self) -> list[GroupedProblem]:
        """What our functions choose kernels for, the first one first."""
        if self.part == LAYER:
            rows = max(1, -(-self.m * TOP_K // self.groups))
            weights = (2 * self.k, self.n), (self.n, self.k)
            return [grouped_problem(Grouping.CONTIGUOUS, self.groups, rows, n, k) for n, k in weights]
        if self.part == K_GROUPED:
            new = grouped_problem(Grouping.COLUMNS, self.groups, self.m, self.n, self.k, OutputType.FLOAT32)
            return [new, new.accumulating()]
        layouts = {CONTIGUOUS: [Grouping.CONTIGUOUS], MASKED: [Grouping.MASKED]}
        both = [Grouping.CONTIGUOUS, Grouping.MASKED]
        return [
            grouped_problem(grouping, self.groups, self.m, self.n, self.k) for grouping in layouts.get(self.part, both)
        ]


_NK = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
_EXPERTS_NK = ((4096, 7168), (7168, 2048))


def _products() -> Iterator[GroupedCase]:
    for groups, m in ((4, 8192), (8, 4096)):
        yield from (GroupedCase(CONTIGUOUS, groups, m, n, k, touched=groups) for n, k in _NK)
    for groups, m, max_m in ((32, 192, 4096), (6, 1024, 4096), (32, 20, 256), (6, 20, 256)):
        yield from (GroupedCase(MASKED, groups, m, n, k, max_m, groups) for n, k in _NK)
    for touched, m in ((256, 3), (8, 1)):
        yield from (GroupedCase(DECODE, 256, m, n, k, 64, touched) for n, k in _EXPERTS_NK)
    for groups, k in ((4, 8192), (8, 4096), (16, 2048)):
        yield from (GroupedCase(K_GROUPED, groups, m, n, k, touched=groups) for m, n in _EXPERTS_NK)
    for experts, hidden, intermediate in ((256, 7168, 2048), (128, 2048, 768)):
        yield from (GroupedCase(LAYER, experts, m, hidden, intermediate) for m in (1, 16, 64, 256, 4096))


CASES: Sequence[GroupedCase] = tuple(_products())
