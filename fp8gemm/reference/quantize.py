"""Quantisation in plain PyTorch, on any device, and what is fused with it.

Every step of a quantiser is plain IEEE float32, so that the kernels can match it bit for bit:

    amax  = max |x| over the block
    scale = amax * (1/448)       with the float32 constant nearest 1/448; 448 is e4m3's largest value
    scale = 1                    if amax is 0
    scale = max(scale, 2^-126)   float32's smallest normal number
    xq    = e4m3(x / scale)      true division, then rounded to nearest even

- Nothing finite overflows: |x / scale| is at most 448 * (1 + 2^-22), which rounds to 448 as if it had been clamped.
- The floor of 2^-126 keeps `x / scale` finite and precise for blocks with amax below 5e-36. Those use less of e4m3's
  range, and what is below 2^-136 there becomes 0.
- NaN and Inf are not masked. A NaN makes its block's scale NaN and all its codes NaN. An Inf makes the scale Inf, its
  own code NaN and the other codes of the block 0. Either way the block stands for NaN (0 * Inf), and no other block
  changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.scales import Blocks, whole_blocks
from fp8gemm.sizes import SCALE_BLOCK

_E4M3_MAX = 448.0
_SMALLEST_SCALE = 2.0**-126


@torch.no_grad()
def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """One scale per row and 128 columns.

    Args:
        x: (M, K) of any float dtype that float32 holds.

    Returns:
        Codes (M, K) float8_e4m3fn and multipliers (M, ceil(K/128)) float32, both contiguous.
    """
    return _quantize(x, rows_per_scale=1)


@torch.no_grad()
def quantize_with_transpose(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`quantize_rows` of ``x`` (M, K), and of its transpose, whose rows end with zeros, at a whole block."""
    transpose = whole_blocks(x.T, 1, SCALE_BLOCK)
    return *quantize_rows(x), *quantize_rows(transpose)


@torch.no_grad()
def keep_rows(x: Tensor, counts: Tensor) -> Tensor:
    """``x`` (G, max_m, K) with zeros for what lies past the first ``counts`` (G,) rows of each group, NaN or not."""
    rows = torch.arange(x.shape[1], device=x.device)
    return torch.where((rows < counts[:, None])[:, :, None], x, torch.zeros((), dtype=x.dtype, device=x.device))


@torch.no_grad()
def quantize_blocks(w: Tensor) -> tuple[Tensor, Tensor]:
    """One scale per 128x128 block of (N, K); codes (N, K), multipliers (ceil(N/128), ceil(K/128)), both contiguous."""
    return _quantize(w, rows_per_scale=SCALE_BLOCK)


@torch.no_grad()
def quantize_small_blocks(w: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """One scale per block of (N, K): the least power of two, from 2^-126 on, that leaves no code past 448, and 1 for
    zeros. Codes (N, K), multipliers (ceil(N/rows), ceil(K/columns)) float32, contiguous. NaN and Inf are as above."""
    n, k = w.shape
    values = whole_blocks(w.to(torch.float32), blocks.rows, blocks.columns)
    tiles = values.unflatten(1, (-1, blocks.columns)).unflatten(0, (-1, blocks.rows))
    amax = tiles.abs().amax(dim=(1, 3))
    scales = powers_of_two(least_exponent(amax).clamp(min=-126)).where(amax > 0, 1.0)
    scales = scales.where(amax.isfinite(), amax)
    codes = (tiles / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    packed = torch.empty((n, k), dtype=codes.dtype, device=w.device)
    return packed.copy_(codes.flatten(2).flatten(0, 1)[:n, :k]), scales


def least_exponent(amax: Tensor) -> Tensor:
    """The least whole e for which a positive ``amax`` is at most 448 * 2^e, int32."""
    mantissa, exponent = torch.frexp(amax)
    return exponent - 9 + (mantissa > 0.875).int()  # 448 is 0.875 * 2^9


def powers_of_two(exponents: Tensor) -> Tensor:
    """2^exponents in float32, -126 to 127, by its bits: an exponential need not be exact."""
    return ((exponents + 127) << 23).to(torch.int32).view(torch.float32)


@torch.no_grad()
def silu_mul(x: Tensor) -> Tensor:
    """`gate / (1 + exp(-gate)) * up` in float32, (M, K), of (M, 2K) with the gate in its first K columns."""
    gate, up = x.to(torch.float32).chunk(2, dim=1)
    return gate / (1 + torch.exp(-gate)) * up


@torch.no_grad()
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x * (1 / sqrt(mean(x^2) + eps)) * weight` in float32, (M, K); the mean is a row's, ``weight`` is (K,)."""
    values = x.to(torch.float32)
    inverse = torch.rsqrt(values.square().mean(dim=1, keepdim=True) + eps)
    return values * inverse * weight.to(torch.float32)


@torch.no_grad()
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`rms_norm` of ``x + residual``, which is rounded to x's dtype before, and that sum."""
    summed = (x.to(torch.float32) + residual.to(torch.float32)).to(x.dtype)
    return rms_norm(summed, weight, eps), summed


def _quantize(x: Tensor, *, rows_per_scale: int) -> tuple[Tensor, Tensor]:
    rows, k = x.shape
    row_blocks, k_blocks = -(-rows // rows_per_scale), -(-k // SCALE_BLOCK)
    values = whole_blocks(x.to(torch.float32), rows_per_scale, SCALE_BLOCK)  # zeros raise no block's amax
    blocks = values.reshape(row_blocks, rows_per_scale, k_blocks, SCALE_BLOCK)
    scales = _scales_of(blocks.abs().amax(dim=(1, 3)))
    codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    packed = torch.empty((rows, k), dtype=codes.dtype, device=x.device)
    return packed.copy_(codes.reshape(row_blocks * rows_per_scale, k_blocks * SCALE_BLOCK)[:rows, :k]), scales


def _scales_of(amax: Tensor) -> Tensor:
    scales = (amax * (1.0 / _E4M3_MAX)).clamp_(min=_SMALLEST_SCALE)
    return torch.where(amax == 0, 1.0, scales)
