"""What peers multiply: random operands, as bfloat16 and as each wants them, and how far a result may be off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fp8gemm.products.quantize import quantize_activation, quantize_weight

MAX_RELATIVE_ERROR = 0.1
"""Against the bfloat16 product. Quantisation to FP8 costs about 0.04 on normal data; a wrong result costs about 1."""

_E4M3_MAX = 448.0

Call = Callable[[], Tensor]
"""One multiplication, (M, N) bfloat16, on the current stream."""


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Standard normal values on the generator's device."""
    return torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)


@dataclass(frozen=True)
class Operands:
    """One set of random operands and what the peers make of it, each made once.

    Attributes:
        x: (M, K) bfloat16.
        w: (N, K) bfloat16.
    """

    x: Tensor
    w: Tensor

    @classmethod
    def random(cls, m: int, n: int, k: int, generator: torch.Generator) -> Operands:
        """Standard normal operands on the generator's device."""
        return cls(normal(generator, m, k), normal(generator, n, k))

    @cached_property
    def blocks(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x scaled 1x128 with MN-major scales, w scaled 128x128: codes, scales, codes, scales."""
        return *quantize_activation(self.x), *quantize_weight(self.w)

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x and w both scaled 1x128 with MN-major scales: codes, scales, codes, scales."""
        return *quantize_activation(self.x), *quantize_activation(self.w)

    @cached_property
    def weight_back(self) -> tuple[Tensor, Tensor]:
        """w^T (K, N) scaled 128x128, a weight that leads from N features back to K: codes, scales."""
        return quantize_weight(self.w.t().contiguous())

    def product(self) -> Tensor:
        """x w^T in bfloat16, unquantised."""
        return torch.mm(self.x, self.w.t())

    def empty_product(self) -> Tensor:
        """An output to write to."""
        return self.x.new_empty(self.x.shape[0], self.w.shape[0])

    @cached_property
    def output(self) -> Tensor:
        """The (M, N) bfloat16 output of all peers that are given one: with outputs of their own two equal launches
        differ by up to 1.6 % (192x4096x7168, H200, 2026-12-01), in every round alike."""
        return self.empty_product()


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of ``expected``, in float64."""
    expected = expected.double()
    return float((result.double() - expected).norm() / expected.norm())


def quantize_whole(t: Tensor, *, per_row: bool) -> tuple[Tensor, Tensor]:
    """FP8 codes of ``t`` (R, K) and float32 multipliers: one per row, shape (R, 1), or a single one, shape ()."""
    magnitude = t.float().abs()
    amax = magnitude.amax(dim=1, keepdim=True) if per_row else magnitude.amax()
    scale = amax.clamp(min=1e-12) / _E4M3_MAX
    return (t.float() / scale).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn), scale
