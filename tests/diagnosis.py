"""What a wrong element's error looks like: which K block is missing, or scaled by what another one should be.

The elements of one tile in the worst element's row, all of them or the wrong ones alone, and those in its column, are
compared with the errors that simple faults would make there. One element proves little where there are many K blocks,
because among hundreds of simple faults one comes close by luck; a row of elements that agree leaves no doubt. So a
fault is named only if it explains the errors up to rounding, luck is improbable, and the faults that predict the same
are in two places at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.sizes import SCALE_BLOCK

_TILE = 128
_UNEXPLAINED = 0.01  # of the error: what may remain beyond rounding
_LUCK = 0.01  # the expected number of faults that come as close by chance
_PLACES = 2  # in which faults may predict the same error; with more of them nothing is said
_NAMED = 3  # faults at most
_NEIGHBOURS = ((-1, "previous"), (1, "next"))

Fault = tuple[str, str, Tensor]
"""Where and what, in words, and the error that it would make in each element of a sample; NaN where that is unknown."""


@dataclass(frozen=True)
class Inputs:
    """What the product was made of: the arguments of `fp8gemm.reference.gemm_reference`."""

    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor
    c: Tensor | None = None
    bias: Tensor | None = None

    @property
    def scales_b_per_row(self) -> bool:
        return self.scales_b.shape[0] == self.b.shape[0]

    def scale_rows_of(self, columns: Tensor) -> Tensor:
        """The rows of `scales_b` that columns of the product are scaled by."""
        return columns if self.scales_b_per_row else columns // SCALE_BLOCK

    def products_of(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The terms of elements at (rows, columns), unscaled: (elements, K blocks, 128) float64, zeros past K."""
        # As bytes, because FP8 itself cannot be indexed everywhere.
        a, b = (
            codes.view(torch.uint8)[index].view(codes.dtype).to(torch.float64)
            for codes, index in ((self.a, rows), (self.b, columns))
        )
        blocks: Tensor = pad(a * b, (0, -a.shape[1] % SCALE_BLOCK)).unflatten(1, (-1, SCALE_BLOCK))
        return blocks


@dataclass(frozen=True)
class Errors:
    """Float64, (M, N) each.

    Attributes:
        error: the output less the reference.
        magnitude: S, what errors are measured in.
        step: half the distance between the output's neighbouring numbers there.
        slack: how far a right element may be off besides, by the tensor core's sums.
        figure: how wrong an element is, 0 where it is right.
    """

    error: Tensor
    reference: Tensor
    magnitude: Tensor
    step: Tensor
    slack: Tensor
    figure: Tensor


def diagnose(errors: Errors, inputs: Inputs) -> str:
    """One line about the worst element, for example "most like K block 3 missing (residual 1.2e-07 of S)"."""
    row, column = divmod(int(errors.figure.argmax()), errors.figure.shape[1])
    first_row, first_column = row // _TILE * _TILE, column // _TILE * _TILE
    wrong = errors.figure > 0
    wrong_rows = wrong[first_row : first_row + _TILE, column].nonzero()[:, 0] + first_row
    wrong_columns = wrong[row, first_column : first_column + _TILE].nonzero()[:, 0] + first_column
    all_rows = torch.arange(first_row, min(first_row + _TILE, wrong.shape[0]), device=wrong.device)
    all_columns = torch.arange(first_column, min(first_column + _TILE, wrong.shape[1]), device=wrong.device)
    samples = [(torch.full_like(columns, row), columns) for columns in (all_columns, wrong_columns)]
    samples += [(rows, torch.full_like(rows, column)) for rows in (all_rows, wrong_rows)]
    for at in sorted(samples, key=lambda sample: -len(sample[0])):
        explanation = _explain(errors, inputs, *at)
        if explanation:
            return f"most like {explanation}"
    if all((errors.error[at].abs() <= 2 * errors.step[at] + errors.slack[at]).all() for at in samples):
        return "within one step of the output: most like a sum rounded the wrong way"
    return "no single K block explains it"


def _explain(errors: Errors, inputs: Inputs, rows: Tensor, columns: Tensor) -> str:
    """The faults that fit the errors at these places, and how well; empty if none does."""
    error, step, slack = (values[rows, columns] for values in (errors.error, errors.step, errors.slack))
    places, names, predictions = zip(
        *_Sample(inputs, rows, columns).faults(errors.reference[rows, columns]), strict=True
    )
    predicted = torch.stack(predictions)
    known = ~predicted.isnan()
    distance = (error - predicted).abs().where(known, 0.0)
    sizes = error.expand_as(known).where(known, 0.0).norm(dim=1)
    share = (distance.norm(dim=1) / sizes).nan_to_num(torch.inf, posinf=torch.inf)
    share[known.sum(dim=1) <= len(error) // 2] = torch.inf
    best = int(share.argmin())
    unexplained = (distance[best] - step - slack).clamp(min=0.0).norm() / sizes[best]
    # No fault counts as closer than a step, because outputs a step apart are all that there is to compare.
    closeness = min(float(torch.maximum(share[best], step.norm() / sizes[best])), 1.0)
    luck = len(names) * closeness ** int(known[best].sum())
    apart = (predicted - predicted[best]).nan_to_num(0.0).norm(dim=1) / sizes[best]
    alike = ((apart <= 1e-3) & share.isfinite()).nonzero()[:, 0].tolist()
    if unexplained > _UNEXPLAINED or luck > _LUCK or len({places[index] for index in alike}) > _PLACES:
        return ""
    residual = float((distance[best] / errors.magnitude[rows, columns]).max())
    closest = sorted(alike, key=lambda index: float(share[index]))[:_NAMED]
    faults = ", or ".join(f"{places[index]} {names[index]}" for index in closest)
    return f"{faults} (residual {residual:.1e} of S, over {len(error)} elements)"


class _Sample:
    """Some elements of the product, and what each K block adds to each of them: (elements, K blocks)."""

    def __init__(self, inputs: Inputs, rows: Tensor, columns: Tensor) -> None:
        self.inputs, self.rows, self.columns = inputs, rows, columns
        self.scale_rows = inputs.scale_rows_of(columns)
        self.scales_a, self.scales_b = inputs.scales_a[rows], inputs.scales_b[self.scale_rows]
        self.sums = inputs.products_of(rows, columns).sum(dim=2)
        self.terms = self._scaled(self.scales_a, self.scales_b)

    def faults(self, reference: Tensor) -> Iterator[Fault]:
        terms, c, bias = self.terms, self.inputs.c, self.inputs.bias
        yield "an output", "of zero", -reference
        if c is not None or bias is not None:
            yield "a product", "of zero", -terms.sum(dim=1)
        yield from _one_block("missing", -terms)
        yield from _one_block("added twice", terms)
        for block in range(1, terms.shape[1] - 1):
            yield f"K blocks {block} and later", "missing", -terms[:, block:].sum(dim=1)
        for where, scales_a, scales_b in self._wrong_scales():
            changes = self._scaled(scales_a, scales_b) - terms
            yield from _one_block(f"with {where}", changes)
            outside = changes.isnan().all(dim=0)
            if terms.shape[1] > 1 and not outside.all():
                # Past the ends of K a kernel finds no scale, or one of zero.
                yield "every K block", f"with {where}", changes.where(~outside, -terms).sum(dim=1)
        if c is not None:
            yield from self._wrong_addend("C", c)
        if bias is not None:
            yield from self._wrong_addend("bias", bias.expand(self.inputs.a.shape[0], -1))

    def _scaled(self, scales_a: Tensor, scales_b: Tensor) -> Tensor:
        scaled: Tensor = self.sums * (scales_a * scales_b).to(torch.float64)
        return scaled

    def _wrong_scales(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Whose scales could have been taken instead, and both operands' scales then."""
        blocks = torch.arange(self.sums.shape[1], device=self.sums.device)
        row_b = "row" if self.inputs.scales_b_per_row else "row of blocks"
        for by, which in _NEIGHBOURS:
            yield f"scales_a of the {which} row", _neighbours(self.inputs.scales_a, self.rows, by), self.scales_b
            yield f"scales_a of the {which} K block", _neighbours(self.scales_a.T, blocks, by).T, self.scales_b
            yield f"scales_b of the {which} K block", self.scales_a, _neighbours(self.scales_b.T, blocks, by).T
            yield (
                f"scales_b of the {which} {row_b}",
                self.scales_a,
                _neighbours(self.inputs.scales_b, self.scale_rows, by),
            )

    def _wrong_addend(self, name: str, addend: Tensor) -> Iterator[Fault]:
        term = addend[self.rows, self.columns].to(torch.float64)
        yield name, "missing", -term
        yield name, "added twice", term
        for by, which in _NEIGHBOURS:
            across = _neighbours(addend, self.rows, by).gather(1, self.columns[:, None])[:, 0]
            along = _neighbours(addend.T, self.columns, by).gather(1, self.rows[:, None])[:, 0]
            yield name, f"of the {which} row", across - term
            yield name, f"of the {which} column", along - term


def _one_block(what: str, changes: Tensor) -> Iterator[Fault]:
    for block in range(changes.shape[1]):
        yield f"K block {block}", what, changes[:, block]


def _neighbours(values: Tensor, index: Tensor, by: int) -> Tensor:
    """The rows `index + by` of `values`, NaN outside."""
    at = index + by
    inside = (at >= 0) & (at < values.shape[0])
    return values[at.clamp(0, values.shape[0] - 1)].where(inside[:, None], torch.nan)
