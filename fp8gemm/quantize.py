"""Quantisation to FP8 e4m3 with one float32 scale per block: `x ~ xq * scale`.

Every step is plain IEEE float32, so that another implementation can match it bit for bit:

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

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.errors import InputError
from fp8gemm.scales import BLOCK, block_count, to_mn_major

__all__ = ["ScaleLayout", "quantize_activation", "quantize_weight", "to_mn_major"]

ScaleLayout = Literal["mn_major", "row_major"]

_E4M3_MAX = 448.0
_SMALLEST_SCALE = 2.0**-126
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@torch.no_grad()
def quantize_activation(x: Tensor, *, scale_layout: ScaleLayout = "mn_major") -> tuple[Tensor, Tensor]:
    """Quantise activations with one scale per row and 128 columns.

    Args:
        x: (M, K) bfloat16, float16 or float32, K contiguous (rows may be any pitch apart), K a multiple of 16.
        scale_layout: "mn_major" for scales with strides (1, align(M, 4)), which the kernels read without a copy, or
            "row_major" for contiguous ones.

    Returns:
        `xq`, (M, K) float8_e4m3fn, contiguous; and `scales`, (M, ceil(K/128)) float32 multipliers. M = 0 gives empty
        ones. Neither requires a gradient.

    Raises:
        InputError: a dtype, shape, stride or layout other than these.
    """
    if scale_layout not in ("mn_major", "row_major"):
        raise InputError(f'scale_layout: expected "mn_major" or "row_major", got {scale_layout!r}')
    _check("x", x, shape="(M, K)")
    codes, scales = _quantize(x, rows_per_scale=1)
    return codes, to_mn_major(scales) if scale_layout == "mn_major" else scales


@torch.no_grad()
def quantize_weight(w: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight with one scale per 128x128 block; blocks at the edges are partial.

    Args:
        w: (N, K) bfloat16, float16 or float32, K contiguous (rows may be any pitch apart), K a multiple of 16.

    Returns:
        `wq`, (N, K) float8_e4m3fn, contiguous; and `scales`, (ceil(N/128), ceil(K/128)) float32 multipliers,
        contiguous. Neither requires a gradient.

    Raises:
        InputError: a dtype, shape or stride other than these.
    """
    _check("w", w, shape="(N, K)")
    return _quantize(w, rows_per_scale=BLOCK)


def _quantize(x: Tensor, *, rows_per_scale: int) -> tuple[Tensor, Tensor]:
    rows, k = x.shape
    row_blocks, k_blocks = -(-rows // rows_per_scale), block_count(k)
    missing_rows, missing_columns = row_blocks * rows_per_scale - rows, k_blocks * BLOCK - k
    values = x.to(torch.float32)
    if missing_rows or missing_columns:
        values = pad(values, (0, missing_columns, 0, missing_rows))  # zeros raise no block's amax
    blocks = values.reshape(row_blocks, rows_per_scale, k_blocks, BLOCK)
    scales = _scales_of(blocks.abs().amax(dim=(1, 3)))
    codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    return codes.view(row_blocks * rows_per_scale, k_blocks * BLOCK)[:rows, :k].contiguous(), scales


def _scales_of(amax: Tensor) -> Tensor:
    scales = (amax * (1.0 / _E4M3_MAX)).clamp_(min=_SMALLEST_SCALE)
    return torch.where(amax == 0, 1.0, scales)


def _check(name: str, x: Tensor, *, shape: str) -> None:
    if x.dtype not in _DTYPES:
        raise InputError(f"{name}: expected one of {', '.join(map(str, _DTYPES))}, got {x.dtype}")
    if x.ndim != 2:
        raise InputError(f"{name}: expected 2 dimensions, {shape}, got shape {tuple(x.shape)}")
    k = x.shape[1]
    if k < 16 or k % 16:
        raise InputError(f"{name}: expected K to be a positive multiple of 16, got K = {k}, shape {tuple(x.shape)}")
    if x.stride(1) != 1:
        raise InputError(f"{name}: expected {shape} with K contiguous (stride 1), got strides {x.stride()}")
