"""What the host knows of grouped products, in the terms that choosing a config understands."""

from __future__ import annotations

from dataclasses import replace

from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.quoting import quoted
from fp8gemm.sizes import check_rows_of_all
from fp8gemm.tuning.config import align
from fp8gemm.tuning.problem import (
    FEW_ROWS,
    Addend,
    Grouping,
    OutputType,
    Problem,
    Scaling,
    StoreKind,
    counted_rows,
)

MAX_GROUPS = 1024
"""Most groups of one product: each CTA holds a table of them in shared memory."""

ENTRY_BYTES = 16
"""Of shared memory, for each group."""

NOMINAL_K = 4096
"""Columns of a group of columns, which a config is chosen for whatever they are."""


def counted_rows_of_group(m: int) -> int:
    """Rows of a typical group as choices count them: between 128 and 256, where one tile more or less is a large part
    of what a group has, the next multiple of 16; elsewhere as those of a single product."""
    return -(-m // 16) * 16 if FEW_ROWS[-1] < m <= 2 * FEW_ROWS[-1] else counted_rows(m)


@dataclass(frozen=True)
class GroupedProblem:
    """Products of many groups: ``D[m] = A[m] B[g]^T`` for the rows m of each group g, or for groups of columns
    ``D[g] = A_g B_g^T (+ C[g])``.

    Attributes:
        grouping: what a group is.
        groups: how many there are.
        m: rows of a typical group; of groups of columns those of A.
        n, k: of B; groups of columns have any K, and `NOMINAL_K` stands for it.
        output: element type of D.
        store: how D can be written.
        c: element type of what is added, to groups of columns alone.
        batch_invariant: as in `Problem`.

    Raises:
        InputError: as `Problem`, for no groups or more than `MAX_GROUPS`, or if their weights have too many rows.
    """

    grouping: Grouping
    groups: int
    m: int
    n: int
    k: int
    output: OutputType = OutputType.BFLOAT16
    store: StoreKind = StoreKind.TMA
    c: Addend = Addend.NONE
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= MAX_GROUPS:
            raise InputError(f"expected 1 to {MAX_GROUPS} groups, got {quoted(self.groups)}")
        self.of_group()
        if self.grouping is not Grouping.COLUMNS:
            check_rows_of_all("weights of groups", "N", self.groups, self.n)

    @property
    def scaling(self) -> Scaling:
        """How B is scaled."""
        return Scaling.ROW if self.grouping is Grouping.COLUMNS else Scaling.BLOCK

    @property
    def counted_m(self) -> int:
        """M as choices count it."""
        return counted_rows_of_group(self.m)

    def accumulating(self) -> GroupedProblem:
        """The same, of columns, with a C that is the output: added by L2 where it can be."""
        return replace(self, c=self.of_group().accumulating().c)

    def table_bytes(self, threads: int) -> int:
        """Of shared memory, for the table of groups and what a CTA of so many threads needs to fill it."""
        return align(ENTRY_BYTES * self.groups + 16 + 8 * (threads // 32), 16)

    def of_group(self) -> Problem:
        """The product of a typical group."""
        return Problem(
            self.m,
            self.n,
            self.k,
            self.output,
            self.store,
            self.scaling,
            self.c,
            batch_invariant=self.batch_invariant,
        )


AnyProblem = Problem | GroupedProblem


def grouped_problem(
    grouping: Grouping,
    groups: int,
    m: int,
    n: int,
    k: int,
    output: OutputType = OutputType.BFLOAT16,
    *,
    batch_invariant: bool = False,
) -> GroupedProblem:
    """The problem of a new, packed output."""
    if grouping is Grouping.COLUMNS:
        k = NOMINAL_K
    store = StoreKind.PREDICATED if n * output.bytes % 16 else StoreKind.TMA
    return GroupedProblem(grouping, groups, m, n, k, output, store, batch_invariant=batch_invariant)
