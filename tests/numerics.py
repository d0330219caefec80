"""What right means for a GEMM kernel, as one reusable check. `tests.cases` makes the data on which it bites.

`check` holds an output to the reference (exact block sums, see `fp8gemm.reference`) by these gates:

| gate | signed | positive | heavy | exact |
|---|---|---|---|---|
| `positions`: NaN and Inf where the reference has them, nowhere else | x | x | x | x |
| `exact`: every finite element is the reference, correctly rounded | | | | x |
| `rms tensor`, `rms row`, `rms tile`: relative RMS, 2.5e-3 (FP16 out 5e-4, FP32 3e-4) | x | | | |
| `element`: |err| <= h |ref| + x S; x = 3e-4 for signed data, else 4e-3 | x | x | x | |
| `bias`: |mean of err / S| <= 1e-3, what rounding alone may average to allowed on top | | x | | |

S is `gemm_magnitude`, with |C| and |bias| where they are added; h is the output's half step, 2^-8 for bfloat16, 2^-11
for float16, and 0 for float32, whose step is nothing beside S. For that reason the FP32 additions of C and bias need no
allowance of their own. A finite element whose reference rounds to Inf is held to `element` too.

RMS groups are rows and 128x128 tiles with at least 64 finite elements; smaller ones are held to `element` alone,
because a correct one-element row exceeds any RMS gate often. For the same reason a group of few elements, whose
correctly rounded reference is itself unluckily far from the unrounded one, may be 10 % worse than that (one row of 64
in a few 10^5). Each gate also allows the absolute error that no format can avoid: half of the output's smallest
subnormal, and half of float32's per K block.

On signed data a correct tensor core exceeds `element` too, in at most one of 10^6 elements (K = 64: 5.0e-4, H200,
2026-11-21), and the RMS gates in a few of 10^5 groups of about 100 elements (rows of 101, K = 144: FP32 out 3.3e-4,
H200, 2026-11-22). So up to one element may, and two in 10^6, and of groups with fewer than 1024 elements one and a
tenth: where the scales of B let a short last K block outweigh the others, several rows of a tensor do (129 x 129 x 144:
by the model two or more in one of 100 tensors; on an H200 three, each as the model says, 2026-11-22). Such an element
is held instead to what truncation can make of it, and such a group to twice what truncation makes of it by a model, see
`tests.truncation`; that is then what the figure says. More elements come together in one of 100 tensors (three of
520 000, K = 128: each 3.0e-4 by the model and on an H200, 2026-11-23): up to ten in 10^6 are held to twice the model.

Where scales of small blocks were folded into codes, one of them can outweigh the others of its K block, and truncation
hurts all columns that share it (512 x 576 x 512, FP32 out, H200, 2026-11-26: 14 elements of the median tensor, at most
113). So with `multiplied`, also on other data, any number of elements, rows and tiles are held to the model, those of
1024 elements and more to 1.25 times. That H200's had 0.87 to 1.24 times its error, rows 0.94 to 1.08, tiles to 1.05.

Where an element is wrong the report adds what its error looks like, see `tests.diagnosis`.

With noisy data and an infinite scale the sign of a nearly cancelled block sum, and so of its Inf, is a matter of luck:
so give such scales to integer codes, where block sums are exact, and check them as "exact".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fp8gemm.reference import gemm_magnitude, gemm_reference, round_to_nearest_even
from fp8gemm.scales import whole_blocks
from tests.diagnosis import Errors, Inputs, diagnose
from tests.truncation import truncation_bound, truncation_error

Data = Literal["signed", "positive", "heavy", "exact"]

_TILE = 128
_SMALLEST_GROUP, _FEW = 64, 1024
_RMS_LIMIT = {torch.bfloat16: 2.5e-3, torch.float16: 5e-4, torch.float32: 3e-4}
_HALF_STEP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 0.0}
_ELEMENT_LIMIT = {"signed": 3e-4, "positive": 4e-3, "heavy": 4e-3, "exact": 0.0}
_BIAS_LIMIT = 1e-3
_RARE = 2e-6  # the share of elements, beside a first one, that may be held to truncation's own bound
_RARE_AS_MODELLED = 1e-5  # and that which may be held to the error that the model has for each
_RARE_GROUPS = 0.1  # and that of groups
_MODEL, _MODEL_OF_MANY = 2.0, 1.25  # times the model's error; an H200 had at most 1.5 in a group (2026-11-22)
_RIGHT_KERNEL = 0.25  # of the element limit: about the worst that a right kernel does


@dataclass(frozen=True)
class Gate:
    """One gate's worst figure over the tensor, in the units of its limit, and where that figure is."""

    name: str
    worst: float
    limit: float
    place: str = ""

    @property
    def passed(self) -> bool:
        return self.worst <= self.limit

    def __str__(self) -> str:
        verdict = "ok    " if self.passed else "FAILED"
        return f"{verdict} {self.name:<10} {self.worst:.3e} (limit {self.limit:.3e}) {self.place}".rstrip()


@dataclass(frozen=True)
class Report:
    """Every gate's figure; `calc_diff` is there because peers quote it, and gates nothing.

    `diagnosis` says what the errors look like where elements are wrong, and is empty elsewhere.
    """

    gates: tuple[Gate, ...]
    calc_diff: float
    diagnosis: str = ""

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(gate.name for gate in self.gates if not gate.passed)

    def worst(self, name: str) -> float:
        """The worst figure of the gate called `name`."""
        return next(gate.worst for gate in self.gates if gate.name == name)

    def __str__(self) -> str:
        lines = [*map(str, self.gates), f"       calc_diff  {self.calc_diff:.3e}"]
        return "\n".join([*lines, f"       {self.diagnosis}"] if self.diagnosis else lines)

    def raise_if_failed(self, context: object = "") -> None:
        """AssertionError with every gate's figure if one failed; `context` says which case it was, with its seed."""
        if self.failed:
            raise AssertionError(f"{context}: wrong by {', '.join(self.failed)}\n{self}")


def check(
    out: Tensor,
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    data: Data = "signed",
    c: Tensor | None = None,
    bias: Tensor | None = None,
    multiplied: Inputs | None = None,
) -> Report:
    """Hold `out`, (M, N) bfloat16, float16 or float32, to the reference of its operands by the gates for `data`.

    `c` and `bias` are what the kernel was given; a kernel that adds in place writes over C, so pass a copy from before.
    `multiplied`: the same product by the kernel's own codes and scales, if folded: what truncation is modelled on.
    """
    reference = gemm_reference(a, scales_a, b, scales_b, c=c, bias=bias, out_dtype=torch.float64)
    if out.shape != reference.shape:
        raise AssertionError(f"output: expected shape {tuple(reference.shape)}, got {tuple(out.shape)}")
    magnitude = gemm_magnitude(a, scales_a, b, scales_b, c=c, bias=bias)
    if out.dtype not in _RMS_LIMIT:
        raise AssertionError(f"output: expected one of {', '.join(map(str, _RMS_LIMIT))}, got {out.dtype}")
    inputs = Inputs(a, scales_a, b, scales_b, c, bias)
    comparison = _Comparison(out, reference, magnitude, multiplied or inputs, data, folded=multiplied is not None)
    report = Report(tuple(comparison.gates()), comparison.calc_diff())
    if not {"element", "exact"} & set(report.failed):
        return report
    return replace(report, diagnosis=diagnose(comparison.errors(), inputs))


class _Comparison:
    """The gates, sharing the error and the elements it is defined on: those where output and reference are finite.

    The reference counts before rounding, so that a finite output beside a reference that rounds to Inf has an error.
    """

    def __init__(
        self, out: Tensor, reference: Tensor, magnitude: Tensor, inputs: Inputs, data: Data, *, folded: bool
    ) -> None:
        self.data, self.inputs, self.folded = data, inputs, folded
        self.dtype = out.dtype
        self.out = out.to(torch.float64)
        self.rounded = round_to_nearest_even(reference, out.dtype).to(torch.float64)
        self.raw_reference, self.magnitude = reference, magnitude
        self.finite = self.out.isfinite() & reference.isfinite()
        self.reference = reference.where(self.finite, 0.0)
        self.error = (self.out - reference).where(self.finite, 0.0)
        smallest = torch.finfo(out.dtype).smallest_normal * torch.finfo(out.dtype).eps
        self.floor = smallest / 2 + inputs.scales_a.shape[1] * 2.0**-150

    def gates(self) -> Iterator[Gate]:
        yield self._positions()
        if self.data == "exact":
            yield self._gate("exact", self._figure, total=self._figure.sum(), limit=0.0)
            return
        if self.data == "signed":
            yield from self._rms()
        yield self._gate("element", self._figure, limit=_ELEMENT_LIMIT[self.data])
        if self.data == "positive":
            yield self._bias()

    def calc_diff(self) -> float:
        squares = (self.reference.square() + (self.reference + self.error).square()).sum()
        return float(self.error.square().sum() / squares) if squares > 0 else 0.0

    def errors(self) -> Errors:
        """What a diagnosis starts from."""
        figure, limit = self._figure, _ELEMENT_LIMIT[self.data]
        step = torch.finfo(self.dtype).eps / 2 * self.reference.abs() + self.floor
        slack = _RIGHT_KERNEL * limit * self.magnitude
        return Errors(self.error, self.reference, self.magnitude, step, slack, figure.where(figure > limit, 0.0))

    def _positions(self) -> Gate:
        kind = _kind(self.out)
        wrong = kind != _kind(self.rounded)
        # Next to the overflow threshold both a large finite number and Inf are right, within what `element` allows. As
        # kinds -Inf, finite and Inf are -1, 0 and 1: what lies between those of the ends is right.
        slack = _ELEMENT_LIMIT[self.data] * self.magnitude
        low, high = (_kind(round_to_nearest_even(self.raw_reference + x, self.dtype)) for x in (-slack, slack))
        wrong &= ~((low <= kind) & (kind <= high) & self.raw_reference.isfinite())
        return self._gate("positions", wrong.to(torch.float64), total=wrong.sum(), limit=0.0)

    @cached_property
    def _figure(self) -> Tensor:
        """How wrong each element is: what rounding does not explain, relative to S; 1 where exact data is not exact."""
        if self.data == "exact":
            return ((self.out != self.rounded) & self.finite).to(torch.float64)
        allowed = _HALF_STEP[self.dtype] * self.reference.abs() + self.floor
        figure = _ratio((self.error.abs() - allowed).clamp(min=0.0), self.magnitude)
        limit = _ELEMENT_LIMIT[self.data]
        rows, columns = (figure > limit).nonzero(as_tuple=True)
        most = 1 + _RARE_AS_MODELLED * figure.numel() if self.data == "signed" else 0
        if len(rows) > 0 and (self.folded or len(rows) <= most):
            if not self.folded and len(rows) <= 1 + _RARE * figure.numel():
                bound = truncation_bound(self.inputs, rows, columns)
            else:
                bound = _MODEL * truncation_error(self.inputs, rows, columns).abs()
            figure[rows, columns] *= limit / (bound / self.magnitude[rows, columns]).clamp(min=limit)
        return figure

    def _rms(self) -> Iterator[Gate]:
        rounding = (self.rounded - self.reference).where(self.finite & self.rounded.isfinite(), 0.0)
        squares = torch.stack([self.error, rounding, self.reference, self.finite.to(torch.float64)]).square_()
        limit = _RMS_LIMIT[self.dtype]
        for name, sums, shape in (
            ("tensor", squares.sum(dim=(1, 2))[:, None, None], self.error.shape),
            ("row", squares.sum(dim=2, keepdim=True), (1, self.error.shape[1])),
            ("tile", _tile_sums(squares), (_TILE, _TILE)),
        ):
            error, unavoidable, reference = sums[:3].sqrt()
            count = sums[3]
            figure = _ratio((error - self.floor * count.sqrt()).clamp(min=0.0), reference)
            figure /= (1.1 * _ratio(unavoidable, reference) / limit).clamp(min=1.0)
            figure = figure.where((count >= _SMALLEST_GROUP) & (reference > 0), 0.0)
            rare = ((figure > limit) & ((count < _FEW) | (self.folded and name != "tensor"))).nonzero()
            if self.folded or len(rare) <= 1 + _RARE_GROUPS * figure.numel():
                for row, column in rare.tolist():
                    bound = self._truncation(row, column, shape) + unavoidable[row, column]
                    figure[row, column] *= limit / (bound / reference[row, column]).clamp(min=limit)
            row, column = _place_of_largest(figure)
            place = {"tensor": "", "row": f"row {row}", "tile": f"tile ({row}, {column})"}[name]
            yield Gate(f"rms {name}", _largest(figure), limit, place)

    def _truncation(self, row: int, column: int, shape: Sequence[int]) -> Tensor:
        """The norm of what truncation may make of a group: the (row, column)-th of `shape` each."""
        first_row, first_column = row * shape[0], column * shape[1]
        group = self.finite[first_row : first_row + shape[0], first_column : first_column + shape[1]]
        rows, columns = group.nonzero(as_tuple=True)
        norm: Tensor = truncation_error(self.inputs, rows + first_row, columns + first_column).norm()
        return norm * (_MODEL if len(rows) < _FEW else _MODEL_OF_MANY)

    def _bias(self) -> Gate:
        count = int(self.finite.sum())
        mean = float(_ratio(self.error, self.magnitude).sum()) / max(count, 1)
        # Rounding errors are spread evenly over half a step, so their mean has this standard deviation; five of them.
        rounding = 5 * _HALF_STEP[self.dtype] / math.sqrt(3 * max(count, 1))
        return Gate("bias", abs(mean), _BIAS_LIMIT + rounding, f"mean err/S {mean:+.3e}")

    def _gate(self, name: str, figure: Tensor, *, limit: float, total: Tensor | None = None) -> Gate:
        if figure.numel() == 0:
            return Gate(name, 0.0, limit)
        row, column = _place_of_largest(figure)
        place = (
            f"at [{row}, {column}], tile ({row // _TILE}, {column // _TILE}): "
            f"{float(self.out[row, column])!r}, expected {float(self.raw_reference[row, column])!r}"
        )
        return Gate(name, float(total) if total is not None else _largest(figure), limit, place)


def _kind(values: Tensor) -> Tensor:
    """2 for NaN, 1 and -1 for the infinities, 0 for what is finite."""
    return (values.isinf() * values.sign().nan_to_num(0.0) + 2 * values.isnan()).to(torch.int8)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """`part / whole` with 0 / anything = 0."""
    return (part / whole).where(part != 0, 0.0)


def _tile_sums(values: Tensor) -> Tensor:
    """(C, M, N) summed over 128x128 tiles, partial ones at the edges."""
    channels, m, n = values.shape
    values = whole_blocks(values, _TILE, _TILE)
    return values.reshape(channels, -(-m // _TILE), _TILE, -(-n // _TILE), _TILE).sum(dim=(2, 4))


def _largest(figure: Tensor) -> float:
    return float(figure.max()) if figure.numel() else 0.0


def _place_of_largest(figure: Tensor) -> tuple[int, int]:
    if figure.numel() == 0:
        return 0, 0
    return divmod(int(figure.argmax()), figure.shape[1])
