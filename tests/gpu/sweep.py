"""Random products: sizes, types, data and layouts drawn from a seed and an index, and nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import fp8gemm
from fp8gemm.tuning.problem import Problem, Scaling
from tests import cases
from tests.cases import Case
from tests.gpu.faults.memory import LAYOUTS
from tests.gpu.faults.support import (
    BF16,
    F16,
    F32,
    Guarded,
    Kind,
    amid_nans,
    poisoned_rows,
    poisoned_scales,
    problem_of,
)
from tests.numerics import Report

MAKERS: dict[str, Callable[..., Case]] = {
    maker.__name__: maker
    for maker in (
        cases.signed,
        cases.positive,
        cases.heavy_tailed,
        cases.small_integers,
        cases.distinct_scales,
    )
}
C_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "packed": lambda c: c,
    "pitch + 8": lambda c: poisoned_rows(c, pitch_extra=8),
    "pitch + 3": lambda c: poisoned_rows(c, pitch_extra=3),
    "column-major": lambda c: c.t().contiguous().t(),
    "one row for all": lambda c: c[:1].expand(c.shape),
}
NEW = "new"


@dataclass(frozen=True)
class Drawn:
    """A product to be made; `str` tells all of it.

    Attributes:
        seed, index: what all the rest follows from.
        layout: of the output, by its name in `LAYOUTS`, or "new" for one that `gemm` makes.
        c_layout: of a C that is not the output.
        row_major: which scales of rows are row-major instead of MN-major.
        pitch_extra: how much further apart than K the rows of A and of B are.
        bias_offset: elements from a 256-byte boundary to the bias.
    """

    seed: int
    index: int
    m: int
    n: int
    k: int
    maker: str
    kind: Kind
    layout: str
    c_layout: str
    row_major: tuple[bool, bool]
    pitch_extra: tuple[int, int]
    bias_offset: int
    batch_invariant: bool

    def prepare(self, device: torch.device) -> Prepared:
        """Its operands, with NaN around each, and its output."""
        made = MAKERS[self.maker](
            self.m, self.n, self.k, seed=self.seed + self.index, device=device, **self.kind.options
        )
        by_rows = self.kind.scaling is Scaling.ROW
        scales_b = poisoned_scales(made.scales_b) if by_rows else amid_nans(made.scales_b)
        laid_out = made.c if made.c is None or self.kind.in_place else C_LAYOUTS[self.c_layout](made.c)
        case = replace(
            made,
            a=poisoned_rows(made.a, pitch_extra=self.pitch_extra[0]),
            scales_a=made.scales_a.contiguous() if self.row_major[0] else poisoned_scales(made.scales_a),
            b=poisoned_rows(made.b, pitch_extra=self.pitch_extra[1]),
            scales_b=scales_b.contiguous() if self.row_major[1] and by_rows else scales_b,
            c=laid_out,
            bias=None if made.bias is None else amid_nans(made.bias, before=self.bias_offset),
        )
        if self.layout == NEW:
            return Prepared(self, case, None)
        strides, offset = LAYOUTS[self.layout](self.m, self.n)
        output = Guarded(self.m, self.n, self.kind.output, device=device, strides=strides, offset=offset)
        return Prepared(self, case, output)


@dataclass(frozen=True)
class Prepared:
    """A product ready to be launched."""

    drawn: Drawn
    case: Case
    output: Guarded | None

    @property
    def problem(self) -> Problem:
        """What `gemm` makes of it."""
        kind, case = self.drawn.kind, self.case
        out = torch.empty(self.drawn.m, self.drawn.n, dtype=kind.output, device=case.a.device)
        out = out if self.output is None else self.output.view
        problem = problem_of(case, out, c=out if kind.in_place else None)
        return replace(problem, batch_invariant=self.drawn.batch_invariant)

    def run(self) -> Report:
        """Multiply and hold the result to its gates; AssertionError if a byte beside the output has changed."""
        kind, terms = self.drawn.kind, dict(self.case.epilogue)
        out = None if self.output is None else self.output.view
        options: dict[str, Any] = {"out_dtype": kind.output, "batch_invariant": self.drawn.batch_invariant}
        if kind.in_place and out is not None:
            terms["c"] = out.copy_(terms["c"])
        result = fp8gemm.gemm(*self.case.operands, **terms, out=out, **options)
        assert result.shape == (self.drawn.m, self.drawn.n) and result.dtype == kind.output
        assert self.output is None or (result is out and self.output.is_intact()), "wrote beside the output"
        return self.case.check(result)


def draw(seed: int, index: int) -> Drawn:
    """A product; the same for the same seed and index."""
    rng = random.Random(f"{seed}/{index}")
    output, scaling = rng.choice((BF16, F16, F32)), rng.choice(tuple(Scaling))
    c, bias = (rng.choice((None, None, BF16, F32)) for _ in range(2))
    in_place = c is output and rng.random() < 0.5
    makers = [name for name in MAKERS if c is None and bias is None or name != "distinct_scales"]
    if output is F16:
        makers.remove("heavy_tailed")  # most of it is past FP16's range
    return Drawn(
        seed=seed,
        index=index,
        m=_size(rng, 1500),
        # Half of them such that TMA can write a packed output.
        n=8 * _size(rng, 375) if rng.random() < 0.5 else _size(rng, 3000),
        k=16 * _size(rng, 256),
        maker=rng.choice(makers),
        kind=Kind(output, scaling, c, bias, in_place),
        layout=rng.choice([*LAYOUTS, *([] if in_place else [NEW] * 4)]),
        c_layout=rng.choice(list(C_LAYOUTS)),
        row_major=(rng.random() < 0.3, rng.random() < 0.3),
        pitch_extra=(rng.choice((0, 16, 128)), rng.choice((0, 16, 128))),
        bias_offset=rng.randrange(9),
        batch_invariant=rng.random() < 0.2,
    )


def _size(rng: random.Random, largest: int) -> int:
    """Tiny ones, those beside a tile's, and any, evenly by their logarithm."""
    style = rng.random()
    if style < 0.15:
        return rng.randint(1, 17)
    if style < 0.4:
        return min(max(8 * rng.randint(1, largest // 8) + rng.choice((-1, 0, 0, 1)), 1), largest)
    return min(int(math.exp(rng.uniform(0.0, math.log(largest + 1)))), largest)
