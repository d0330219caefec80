"""Is a product right? Held to the float64 product of what the FP8 codes stand for, and to the unquantised product.

The reference is not the package's reference backend, so that the check means something for that backend too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from fp8gemm.lab.bench.operands import relative_error

MAX_REFERENCE_ERROR = 2.5e-3
"""Relative RMS. Rounding to bfloat16 alone makes about 1.7e-3."""

MAX_BF16_ERROR = 0.05
"""Relative RMS. Quantising both operands of normal data to e4m3 makes about 0.037."""

SMALLEST_SAMPLE = 1024
"""Elements. The RMS of fewer exceeds any useful limit now and then, so they are held to the element's bound alone."""

_ROUNDING = 2.0**-8
_ACCUMULATION = 3e-4


@dataclass(frozen=True)
class Check:
    """How a product compares.

    Attributes:
        reference_error: relative RMS against the reference: the kernel's own error.
        bf16_error: relative RMS against the unquantised bfloat16 product: mostly that of FP8 itself.
        elements: of the product.
        outside: elements further from the reference than ``2^-8 |reference| + 3e-4 sum_k |a b|``, or not a number.
    """

    reference_error: float
    bf16_error: float
    elements: int
    outside: int

    @property
    def passed(self) -> bool:
        return not any(self.failures())

    def failures(self) -> Iterator[str]:
        """What is wrong, in words."""
        if self.outside:
            yield f"{self.outside} of {self.elements} elements differ from the reference by more than rounding explains"
        if self.elements < SMALLEST_SAMPLE:
            return
        for name, error, limit in (
            ("the reference", self.reference_error, MAX_REFERENCE_ERROR),
            ("the bfloat16 product", self.bf16_error, MAX_BF16_ERROR),
        ):
            if not error <= limit:  # a NaN fails too
                yield f"relative RMS error {error:.2e} against {name}, expected at most {limit:.2e}"


def check(out: Tensor, activation: Tensor, weight: Tensor, bf16_product: Tensor) -> Check:
    """Compare a product with what it should be.

    Args:
        out: (M, N) bfloat16.
        activation: (M, K) float64, dequantised exactly.
        weight: (N, K) float64, dequantised exactly.
        bf16_product: (M, N) bfloat16, of the operands before quantisation.
    """
    reference = activation @ weight.t()
    magnitude = activation.abs() @ weight.abs().t()
    result = out.double()
    error = (result - reference).abs_()
    inside = error <= magnitude.mul_(_ACCUMULATION).add_(reference.abs(), alpha=_ROUNDING)
    return Check(
        reference_error=relative_error(result, reference),
        bf16_error=relative_error(result, bf16_product),
        elements=out.numel(),
        outside=out.numel() - int(inside.sum()),
    )
