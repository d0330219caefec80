"""Grouped products on which a wrong kernel shows, on any device, and what holds an output to the reference.

    case = contiguous_case(in_order((5, 0, 130)), 576, 256, seed=seed, device=device)
    out = case.poison(torch.bfloat16)
    case.check(fp8gemm.gemm_grouped(*case.operands, indices=case.indices(), out=out))

Data comes from the makers of `tests.cases`, and gates from `tests.numerics`. Rows of no group are NaN in the operands,
and a pattern in a poisoned output, where not a bit of them may change. NaN is what the other rows begin with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fp8gemm.reference import row_ranges
from fp8gemm.reference.gemm import gemm_reference
from fp8gemm.scales import block_count, empty_mn_major_groups
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import same_bits
from tests.numerics import Data, check

Maker = Callable[..., cases.Case]
Run = tuple[int, int]
"""A group, or -1 for none, and how many rows of it come one after another."""

UNTOUCHED = 7.25
"""What rows of no group hold in a poisoned output."""


def in_order(sizes: Iterable[int]) -> list[Run]:
    """Groups of these sizes, one right after another."""
    return list(enumerate(sizes))


@dataclass(frozen=True)
class ContiguousCase:
    """Operands of one `fp8gemm.gemm_grouped`, and whose the rows are."""

    data: Data
    seed: int
    runs: tuple[Run, ...]
    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.a, self.scales_a, self.b, self.scales_b

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First row of each group and the one past its last."""
        return row_ranges(self.a.shape[0], self.b.shape[0], indices=self.indices().cpu())

    def indices(self, dtype: torch.dtype = torch.int32) -> Tensor:
        found = [group for group, rows in self.runs for _ in range(rows)]
        return torch.tensor(found, dtype=dtype, device=self.a.device)

    def bounds(self, dtype: torch.dtype = torch.int32) -> Tensor:
        """Offsets of shape (2, G), which can say every layout."""
        return torch.tensor(self.ranges, dtype=dtype, device=self.a.device).T.contiguous()

    def offsets(self, dtype: torch.dtype = torch.int32) -> Tensor:
        """Offsets of shape (G + 1,), for groups in order with nothing between them."""
        sizes = dict(self.runs)
        first = self.runs[0][1] if self.runs and self.runs[0][0] < 0 else 0
        found = [first]
        for group in range(self.b.shape[0]):
            found.append(found[-1] + sizes.get(group, 0))
        return torch.tensor(found, dtype=dtype, device=self.a.device)

    def poison(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        out = torch.full((self.a.shape[0], self.b.shape[1]), UNTOUCHED, dtype=dtype, device=self.a.device)
        return self.poison_in(out)

    def poison_in(self, out: Tensor) -> Tensor:
        out.fill_(UNTOUCHED)
        for begin, end in self.ranges:
            out[begin:end] = math.nan
        return out

    def check(self, out: Tensor, *, rest: bool = True) -> None:
        """AssertionError if a row is wrong, or with ``rest`` if one of no group is not as it was poisoned."""
        for group, (begin, end) in enumerate(self.ranges):
            _check_group(self, group, out[begin:end], self.a[begin:end], self.scales_a[begin:end])
        if rest:
            _check_untouched(self, out[self.indices() < 0])

    def __str__(self) -> str:
        return f"{self.data} data, {_named(self.b)} M={self.a.shape[0]}, runs {_short(self.runs)}, seed {self.seed}"


@dataclass(frozen=True)
class MaskedCase:
    """Operands of one `fp8gemm.gemm_masked`; ``asked`` may be past the room that there is, or below 0."""

    data: Data
    seed: int
    asked: tuple[int, ...]
    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.a, self.scales_a, self.b, self.scales_b

    @property
    def valid(self) -> list[int]:
        """Rows of each group that are computed."""
        return [min(max(count, 0), self.a.shape[1]) for count in self.asked]

    def counts(self, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(self.asked, dtype=dtype, device=self.a.device)

    def poison(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        shape = (*self.a.shape[:2], self.b.shape[1])
        return self.poison_in(torch.empty(shape, dtype=dtype, device=self.a.device))

    def poison_in(self, out: Tensor) -> Tensor:
        out.fill_(UNTOUCHED)
        for group, count in enumerate(self.valid):
            out[group, :count] = math.nan
        return out

    def check(self, out: Tensor, *, rest: bool = True) -> None:
        """AssertionError if a valid row is wrong, or with ``rest`` if another is not as it was poisoned."""
        for group, count in enumerate(self.valid):
            _check_group(self, group, out[group, :count], self.a[group, :count], self.scales_a[group, :count])
        if rest:
            rows = torch.arange(self.a.shape[1], device=out.device)
            _check_untouched(self, out[rows >= torch.tensor(self.valid, device=out.device)[:, None]])

    def __str__(self) -> str:
        asked = f"max_m={self.a.shape[1]}, counts {_short(self.asked)}"
        return f"{self.data} data, {_named(self.b)} {asked}, seed {self.seed}"


@dataclass(frozen=True)
class KGroupedCase:
    """Operands of one `fp8gemm.gemm_k_grouped`."""

    data: Data
    seed: int
    sizes: tuple[int, ...]
    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor
    c: Tensor | None

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.a, self.scales_a, self.b, self.scales_b

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.sizes), self.a.shape[0], self.b.shape[0]

    def offsets(self, dtype: torch.dtype = torch.int32) -> Tensor:
        """Of shape (G + 1,)."""
        limits = torch.tensor((0, *self.sizes), device=self.a.device).cumsum(0)
        return limits.to(dtype)

    def group(self, group: int) -> cases.Case:
        """The dense product, with its C, of one group that is not empty."""
        end = sum(self.sizes[: group + 1])
        columns = slice(end - self.sizes[group], end)
        blocks = slice(columns.start // SCALE_BLOCK, end // SCALE_BLOCK)
        operands = (self.a[:, columns], self.scales_a[:, blocks], self.b[:, columns], self.scales_b[:, blocks])
        return cases.Case(self.data, self.seed, *operands, None if self.c is None else self.c[group])

    def poison(self) -> Tensor:
        return torch.full(self.shape, math.nan, device=self.a.device)

    def check(self, out: Tensor) -> None:
        """AssertionError if a group is wrong, or one that is empty is not its C bit for bit."""
        assert out.shape == self.shape and out.dtype == torch.float32, f"{self}: {out.dtype} {tuple(out.shape)}"
        for group, size in enumerate(self.sizes):
            if size:
                self.group(group).check(out[group]).raise_if_failed(f"{self}, group {group}")
                continue
            expected = torch.zeros_like(out[group]) if self.c is None else self.c[group]
            assert same_bits(out[group], expected), f"{self}: group {group} is empty and not its C"

    def __str__(self) -> str:
        terms = "" if self.c is None else " with C"
        return f"{self.data} data, G, M, N = {self.shape}{terms}, sizes {_short(self.sizes)}, seed {self.seed}"


def contiguous_case(
    runs: Sequence[Run],
    n: int,
    k: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    maker: Maker = cases.signed,
    groups: int | None = None,
) -> ContiguousCase:
    """A product of groups whose rows lie in these runs; ``groups`` where the last ones are in none of them."""
    groups = groups or max(1, *(group + 1 for group, _ in runs))
    case = maker(sum(rows for _, rows in runs), groups * _whole(n), k, seed=seed, device=device)
    made = ContiguousCase(case.data, seed, tuple(runs), case.a, case.scales_a, *_weights(case, groups, n))
    of_none = made.indices() < 0
    made.a.view(torch.uint8)[of_none] = 0x7F  # NaN
    made.scales_a[of_none] = math.nan
    return made


def masked_case(
    counts: Sequence[int],
    max_m: int,
    n: int,
    k: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    maker: Maker = cases.signed,
) -> MaskedCase:
    """A product of so many rows of each group, in room for ``max_m``."""
    groups = len(counts)
    case = maker(groups * max_m, groups * _whole(n), k, seed=seed, device=device)
    a = case.a.view(groups, max_m, k)
    scales_a = empty_mn_major_groups(groups, max_m, block_count(k), device=a.device)
    storage: Any = scales_a.untyped_storage()  # whose type does not know of filling
    storage.fill_(0xFF)  # NaN, in the padding of columns too
    scales_a.copy_(case.scales_a.reshape(groups, max_m, block_count(k)))
    made = MaskedCase(case.data, seed, tuple(counts), a, scales_a, *_weights(case, groups, n))
    for group, count in enumerate(made.valid):
        a.view(torch.uint8)[group, count:] = 0x7F
        scales_a[group, count:] = math.nan
    return made


def k_grouped_case(
    sizes: Sequence[int],
    m: int,
    n: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    maker: Maker = cases.signed,
    c: bool = False,
) -> KGroupedCase:
    """A product of groups of so many columns, with a C of its own for each if ``c``."""
    options: dict[str, Any] = {"c": torch.float32} if c else {}
    case = maker(m, n, sum(sizes), seed=seed, device=device, scaling=Scaling.ROW, **options)
    terms = None if case.c is None else torch.stack([case.c.roll(group, 0) for group in range(len(sizes))])
    return KGroupedCase(case.data, seed, tuple(sizes), *case.operands, terms)


def _whole(n: int) -> int:
    """Rows of B from one group to the next where none shares a block of scales with another."""
    return block_count(n) * SCALE_BLOCK


def _weights(case: cases.Case, groups: int, n: int) -> tuple[Tensor, Tensor]:
    """(G, N, K) and its scales out of a B of `_whole` rows for each group."""
    b = case.b.view(torch.uint8).view(groups, _whole(n), -1)[:, :n].contiguous().view(case.b.dtype)
    return b, case.scales_b.view(groups, block_count(n), -1)


def _check_group(case: ContiguousCase | MaskedCase, group: int, out: Tensor, a: Tensor, scales_a: Tensor) -> None:
    if not out.shape[0]:
        return
    operands = (a, scales_a, case.b[group], case.scales_b[group])
    # What is exact can be told without the gates, which take longer; they say what is wrong.
    if case.data != "exact" or not torch.equal(out, gemm_reference(*operands, out_dtype=out.dtype)):
        check(out, *operands, data=case.data).raise_if_failed(f"{case}, group {group}")


def _check_untouched(case: ContiguousCase | MaskedCase, rows: Tensor) -> None:
    wrong = int((rows != UNTOUCHED).any(-1).sum())
    assert not wrong, f"{case}: {wrong} of {rows.shape[0]} rows of no group were written"


def _named(b: Tensor) -> str:
    return f"G={b.shape[0]} N={b.shape[1]} K={b.shape[2]}"


def _short(values: Sequence[object]) -> str:
    return str(list(values)) if len(values) <= 16 else f"{list(values[:16])} and {len(values) - 16} more"
