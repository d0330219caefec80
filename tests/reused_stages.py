"""The call on which a stage of a ring was seen to be overwritten before its scales had been read.

Masked groups of which half are empty. With N = 65 a row is stored element by element, and loads of scales queue behind;
with K = 128 every tile is one stage. In one call of 500 to 1000 the rows of a warp were multiplied by the scales of the
tile that came next into the stage, eight tiles later. (The tile was 64x64, of two warpgroups, which none of these calls
chooses any more: they play 64x96, of one, and 128x64, of two.) Scales therefore differ, in a tile and between tiles;
and outputs change from call to call, so that what is left of the one before is wrong too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.reference import gemm_masked_reference
from fp8gemm.scales import empty_mn_major_groups
from fp8gemm.tuning.grouped import select_grouped
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Grouping, OutputType
from tests import cases
from tests.grouped import MaskedCase, masked_case
from tests.launches import Wrong, replay_ends, wrong_in
from tests.prepared import Device

GROUPS, MAX_M, N, K = 1024, 512, 65, 128
PAIRS_OF_GRAPH = 50
FIRST_CALLS = 5
"""Of which one must be right, or the operands are not what they should be."""


@dataclass(frozen=True)
class Variant:
    """How the product is called.

    Attributes:
        output: its dtype.
        expected_m: as the argument; None for the batch-invariant mode instead.
        pdl: whether launches are programmatic.
    """

    output: OutputType
    expected_m: int | None
    pdl: bool

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `fp8gemm.gemm_masked`."""
        return {"batch_invariant": True} if self.expected_m is None else {"expected_m": self.expected_m}

    def tile(self, chip: Chip) -> str:
        """Of the kernel that is chosen."""
        problem = grouped_problem(
            Grouping.MASKED,
            GROUPS,
            MAX_M if self.expected_m is None else self.expected_m,
            N,
            K,
            self.output,
            batch_invariant=self.expected_m is None,
        )
        return select_grouped(problem, chip).label

    def __str__(self) -> str:
        how = "batch-invariant" if self.expected_m is None else f"expected-m-{self.expected_m}"
        return f"{self.output.value}-{how}-{'pdl' if self.pdl else 'plain'}"


VARIANTS = tuple(
    Variant(output, expected_m, pdl)
    for output, expected_m, pdl in product((OutputType.FLOAT16, OutputType.FLOAT32), (None, 64), (True, False))
)


@dataclass(frozen=True)
class Operands:
    """Of two calls, which differ in the scales of rows: those of the second are twice those of the first.

    Attributes:
        case: the first.
        counts: rows of each group.
        scales: of rows, for either call.
        right: in float32, of the first call, which has ``case.poison``'s pattern in rows that are not there.
        there: whether a row is, (G, max_m, 1).
    """

    case: MaskedCase
    counts: Tensor
    scales: tuple[Tensor, Tensor]
    right: Tensor
    there: Tensor

    def right_as(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What either call gives. In any dtype, for no sum has more than ten bits."""
        return self.right.to(dtype), torch.where(self.there, 2 * self.right, self.right).to(dtype)


def make_operands(seed: int, device: Device, groups: int = GROUPS, max_m: int = MAX_M) -> Operands:
    """Half of the groups, drawn at random, are empty, and the others full."""
    full = set(random.Random(seed).sample(range(groups), groups // 2))
    counts = [max_m if group in full else 0 for group in range(groups)]
    case = masked_case(counts, max_m, N, K, seed=seed, device=device, maker=cases.small_integers)
    given = case.counts()
    twice = empty_mn_major_groups(groups, max_m, case.scales_a.shape[2], device=case.a.device).copy_(2 * case.scales_a)
    right = gemm_masked_reference(*case.operands, given, out=case.poison(torch.float32))
    there = torch.arange(max_m, device=right.device) < given[:, None]
    return Operands(case, given, (case.scales_a, twice), right, there[..., None])


def count_wrong(out: Tensor, right: Tensor, wrong: Tensor) -> None:
    """Add to ``wrong``, (2,) int64 as `Wrong`, what is not right to the bit, without waiting for it."""
    bits = torch.int32 if out.element_size() == 4 else torch.int16
    found = (out.view(bits) != right.view(bits)).sum()
    wrong[0].add_(found > 0)
    wrong[1].add_(found)


class Calls:
    """A graph of many calls of one variant, each compared on the GPU to the bit.

    Two calls follow each other with nothing between them, each into an output that holds what the other gives.

    Args:
        variant: which.
        operands: of all calls.

    Attributes:
        name: of the variant.
        launches: calls of a replay.

    Raises:
        AssertionError: none of a few first calls gives what the reference says.
    """

    def __init__(self, variant: Variant, operands: Operands) -> None:
        self.name, self.launches = str(variant), 2 * PAIRS_OF_GRAPH
        self._operands, self._options = operands, variant.options
        case, dtype = operands.case, getattr(torch, variant.output.value)
        right = operands.right_as(dtype)
        self._outs = [case.poison(dtype) for _ in right]
        self._wrong = torch.zeros(2, dtype=torch.int64, device=case.a.device)
        self._graph, self._done = torch.cuda.CUDAGraph(), torch.cuda.Event()
        with settings.scope(pdl=variant.pdl):
            # To the bit a call is compared with what the same kernel gave first, which the reference says is right.
            self._firsts = [self._first(which, each) for which, each in enumerate(right)]
            torch.cuda.synchronize(case.a.device)
            with torch.cuda.graph(self._graph):
                for pair in range(PAIRS_OF_GRAPH):
                    self._record_pair(pair % 2)

    def _call(self, which: int, out: Tensor) -> None:
        case, scales = self._operands.case, self._operands.scales[which]
        fp8gemm.gemm_masked(case.a, scales, case.b, case.scales_b, self._operands.counts, out=out, **self._options)

    def _first(self, which: int, right: Tensor) -> Tensor:
        """The output of the first call that is right; those that are not are counted."""
        for _ in range(FIRST_CALLS):
            out = self._operands.case.poison_in(torch.empty_like(right))
            self._call(which, out)
            if torch.equal(out, right):
                return out
            count_wrong(out, right, self._wrong)
        raise AssertionError(f"none of {FIRST_CALLS} calls gives what the reference says")

    def _record_pair(self, turn: int) -> None:
        order = [(which, self._outs[which ^ turn]) for which in range(2)]
        for which, out in order:
            self._call(which, out)
        for which, out in order:
            count_wrong(out, self._firsts[which], self._wrong)

    def replay(self) -> Wrong | None:
        """What was wrong so far; None if the replay does not end."""
        return wrong_in(self._wrong) if replay_ends(self._graph, self._done) else None
