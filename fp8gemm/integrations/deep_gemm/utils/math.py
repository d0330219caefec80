"""Casts to FP8 as DeepGEMM's tests make their operands. `fp8gemm.quantize_activation` does it in one kernel.

A block's scale is its largest magnitude, but at least 1e-4, over 448; a code is the value times the scale's reciprocal.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations.deep_gemm.arguments import RefusedError
from fp8gemm.scales import whole_blocks

_LARGEST = 448.0
_SMALLEST_MAXIMUM = 1e-4


def ceil_div(x: int, y: int) -> int:
    """``x / y``, rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """``x``, rounded up to a multiple of ``y``."""
    return ceil_div(x, y) * y


def ceil_to_ue8m0(x: Tensor) -> Tensor:
    """Magnitudes of ``x``, rounded up to powers of two, which is what UE8M0 scales can hold; float32."""
    mantissa, exponent = torch.frexp(x.abs().float())
    power = exponent - (mantissa == 0.5).to(exponent.dtype)  # x = mantissa * 2^exponent, with 0.5 <= mantissa < 1
    return torch.ldexp(torch.ones_like(mantissa), power.clamp(-126, 127))


def per_token_cast_to_fp8(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Quantise with one scale per row and ``gran_k`` columns.

    Args:
        x: (M, K), bfloat16, float16 or float32.
        use_ue8m0: whether to round scales up to powers of two.
        gran_k: 128 for operands of a product.
        use_packed_ue8m0: False, see below.

    Returns:
        (M, K) float8_e4m3fn and (M, ceil(K / gran_k)) float32, both contiguous.

    Raises:
        RefusedError: ``x`` is no matrix.
        UnsupportedError: packed scales, which SM90 products do not read.
    """
    if use_packed_ue8m0:
        raise UnsupportedError("use_packed_ue8m0: expected False, packed scales are for SM100")
    rows, columns = _matrix(x)
    blocks = pad(x, (0, -columns % gran_k)).view(rows, -1, gran_k)
    codes, scales = _cast(blocks, (2,), use_ue8m0)
    return codes.view(rows, -1)[:, :columns].contiguous(), scales.view(rows, -1)


def per_channel_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Quantise with one scale per column and ``gran_k`` rows.

    Args:
        x: (K, N), K a multiple of ``gran_k``.
        use_ue8m0, gran_k: as in `per_token_cast_to_fp8`.

    Returns:
        (K, N) float8_e4m3fn and (K / gran_k, N) float32, both contiguous.

    Raises:
        RefusedError: ``x`` is no such matrix.
    """
    rows, columns = _matrix(x)
    if rows % gran_k:
        raise RefusedError(f"x: expected rows in a multiple of {gran_k}, got shape {tuple(x.shape)}")
    codes, scales = _cast(x.reshape(-1, gran_k, columns), (1,), use_ue8m0)
    return codes.view(rows, columns), scales.view(-1, columns)


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Quantise with one scale per ``gran_k`` x ``gran_k`` block; blocks at the edges are partial.

    Args:
        x: (N, K), bfloat16, float16 or float32.
        use_ue8m0, gran_k: as in `per_token_cast_to_fp8`.

    Returns:
        (N, K) float8_e4m3fn and (ceil(N / gran_k), ceil(K / gran_k)) float32, both contiguous.

    Raises:
        RefusedError: ``x`` is no matrix.
    """
    rows, columns = _matrix(x)
    whole = whole_blocks(x, gran_k, gran_k)
    of_rows, of_columns = ceil_div(rows, gran_k), ceil_div(columns, gran_k)
    codes, scales = _cast(whole.view(of_rows, gran_k, of_columns, gran_k), (1, 3), use_ue8m0)
    return codes.reshape(whole.shape)[:rows, :columns].contiguous(), scales.view(of_rows, of_columns)


def per_token_cast_to_fp4(*_: Any, **__: Any) -> NoReturn:
    """Refused: SM90 has no FP4.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError("per_token_cast_to_fp4: expected an SM100 GPU, SM90 has no FP4")


def transpose_packed_fp4(*_: Any, **__: Any) -> NoReturn:
    """Refused: SM90 has no FP4.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError("transpose_packed_fp4: expected an SM100 GPU, SM90 has no FP4")


def _matrix(x: Tensor) -> tuple[int, int]:
    if x.dim() != 2:
        raise RefusedError(f"x: expected 2 dimensions, got shape {tuple(x.shape)}")
    return x.shape[0], x.shape[1]


def _cast(blocks: Tensor, dimensions: tuple[int, ...], use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    """Codes of ``blocks``, and a scale for all that differ in ``dimensions`` alone."""
    values = blocks.float()
    scales = values.abs().amax(dim=dimensions, keepdim=True).clamp(min=_SMALLEST_MAXIMUM) / _LARGEST
    if use_ue8m0:
        scales = ceil_to_ue8m0(scales)
    return (values * (1.0 / scales)).to(torch.float8_e4m3fn), scales
