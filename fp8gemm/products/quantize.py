"""Quantisation to FP8 e4m3 with one float32 scale per block: `x ~ xq * scale`.

`fp8gemm.reference.quantize` says what each quantiser computes, to the bit. On a Hopper GPU these functions launch a
kernel on the current stream; CPU tensors, and any with ``FP8GEMM_BACKEND=reference``, go to the reference. The kernels
of `quantize_activation`, `quantize_weight` and `quantize_with_transpose` give the reference's bits. Those of the others
compute an exponential and a sum of squares in another way: their scales differ by a few units in the last place, and a
code that lies on the border between two may be its neighbour (docs/numerics.md has the bound and what was measured).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import fp8gemm.products.operators  # noqa: F401  # which are what is traced
from fp8gemm import reference
from fp8gemm.checks import memory
from fp8gemm.checks.quantizers import check_matrix, check_norm, check_quantized, check_residual, check_rows
from fp8gemm.errors import InputError
from fp8gemm.kernels.quantize import QuantizeSource
from fp8gemm.products.operands import uses_reference
from fp8gemm.products.quantizers import (
    quantize_blocks,
    quantize_both_ways,
    quantize_masked,
    quantize_norm,
    quantize_rows,
    quantize_rows_into,
)
from fp8gemm.products.watched import goes_to_operator
from fp8gemm.scales import OF_WEIGHTS, Blocks, empty_mn_major_groups, to_mn_major

__all__ = [
    "ScaleLayout",
    "quantize_activation",
    "quantize_add_rms_norm",
    "quantize_rms_norm",
    "quantize_silu_mul",
    "quantize_weight",
    "quantize_with_transpose",
]

ScaleLayout = Literal["mn_major", "row_major"]


def quantize_activation(
    x: Tensor, *, counts: Tensor | None = None, scale_layout: ScaleLayout = "mn_major"
) -> tuple[Tensor, Tensor]:
    """Quantise activations with one scale per row and 128 columns; with ``counts``, the first rows of each group.

    Args:
        x: (M, K) bfloat16, float16 or float32, K contiguous (rows may be any pitch apart), K a multiple of 16. On a GPU
            rows that do not begin on 16-byte boundaries are copied first. With ``counts`` (G, max_m, K), groups any
            pitch apart.
        counts: (G,) int32, or int64, which is converted first, where ``x`` is: how many rows of each group there are; a
            number below 0 or above max_m means that one. The host does not read them, so that a CUDA graph may be
            replayed with others.
        scale_layout: "mn_major" for scales with strides (1, align(M, 4)), which the kernels read without a copy, or
            "row_major" for contiguous ones.

    Returns:
        `xq`, (M, K) float8_e4m3fn, contiguous; and `scales`, (M, ceil(K/128)) float32 multipliers. M = 0 gives empty
        ones. Neither requires a gradient. With ``counts`` (G, max_m, K) and (G, max_m, ceil(K/128)), the latter with
        strides (ceil(K/128) * align(max_m, 4), 1, align(max_m, 4)); rows that there are have the bits that they have
        without groups, others are neither read nor written and hold anything.

    Raises:
        InputError: a dtype, shape, stride, device or layout other than these.
    """
    if scale_layout not in ("mn_major", "row_major"):
        raise InputError(f'scale_layout: expected "mn_major" or "row_major", got {scale_layout!r}')
    if goes_to_operator("x counts?", x, counts):
        codes, scales = torch.ops.fp8gemm.quantize_activation(x, counts)
    else:
        codes, scales = direct_activation(x, counts)
    return codes, scales if scale_layout == "mn_major" else scales.contiguous()


def quantize_weight(w: Tensor, *, block_size: tuple[int, int] = (128, 128)) -> tuple[Tensor, Tensor]:
    """Quantise a weight with one scale per 128x128 block; blocks at the edges are partial.

    Args:
        w: (N, K) bfloat16, float16 or float32, K contiguous (rows may be any pitch apart), K a multiple of 16.
        block_size: rows and columns that share one scale. Others than (128, 128) are divisors of 128, (32, 32) say,
            with scales that are powers of two, as checkpoints of such blocks have them and `fp8gemm.fold_scales` and
            layers take them. These are made in plain PyTorch, on the device where ``w`` is.

    Returns:
        `wq`, (N, K) float8_e4m3fn, contiguous; and `scales`, (ceil(N/128), ceil(K/128)) float32 multipliers, or as many
        as there are other blocks, contiguous. Neither requires a gradient.

    Raises:
        InputError: a dtype, shape, stride or block size other than these.
    """
    if block_size != (128, 128) and (blocks := Blocks.of("block_size", block_size)) != OF_WEIGHTS:
        check_matrix("w", w, shape="(N, K)")
        return reference.quantize_small_blocks(w, blocks)
    if goes_to_operator("w", w):
        traced: tuple[Tensor, Tensor] = torch.ops.fp8gemm.quantize_weight(w)
        return traced
    return direct_weight(w)


def quantize_with_transpose(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantise a matrix and its transpose, each with one scale per row and 128 columns; it is read once.

    Training multiplies by both: `y = x @ w.T` takes the codes of ``x``, the weight's gradient `dy.T @ x` those of its
    transpose, which is also `quantize_activation` of ``x.T`` that rows of zeros follow.

    Args:
        x: (M, K) as in `quantize_activation`.

    Returns:
        `xq` (M, K) and `scales` (M, ceil(K/128)), those of `quantize_activation`; and of the transpose codes (K, M'),
        M' being M rounded up to a multiple of 128, with codes of zero in the columns behind M (of NaN where their block
        is), and scales (K, M'/128).
        Codes are float8_e4m3fn, contiguous; scales float32, MN-major. None requires a gradient.

        A multiple of 16 would do for a product, of which M' is the K. But kernels are compiled for their K: of whole
        blocks there are eight times fewer, where M varies, and none is slower, for kernels multiply whole blocks.

    Raises:
        InputError: a dtype, shape or stride other than these.
    """
    if goes_to_operator("x", x):
        traced: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.fp8gemm.quantize_with_transpose(x)
        return traced
    return direct_with_transpose(x)


def quantize_silu_mul(x: Tensor, *, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantise `silu(gate) * up`, which is computed in float32 and rounded once, to the codes.

    Args:
        x: (M, 2K) like ``x`` of `quantize_activation`: the gate in the first K columns, up in the others. K is a
            multiple of 16. With ``counts`` (G, max_m, 2K).
        counts: as in `quantize_activation`.

    Returns:
        As `quantize_activation` of (M, K) or (G, max_m, K), scales MN-major.

    Raises:
        InputError: a dtype, shape, stride or device other than these.
    """
    if goes_to_operator("x counts?", x, counts):
        traced: tuple[Tensor, Tensor] = torch.ops.fp8gemm.quantize_silu_mul(x, counts)
        return traced
    return direct_silu_mul(x, counts)


def quantize_rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Quantise `x / sqrt(mean(x^2) + eps) * weight`, which is computed in float32 and rounded once, to the codes.

    Args:
        x: (M, K) as in `quantize_activation`, K at most 65536.
        weight: (K,) bfloat16, float16 or float32, contiguous, where ``x`` is.
        eps: added to the mean of a row's squares, at least 0.

    Returns:
        As `quantize_activation`, scales MN-major.

    Raises:
        InputError: a dtype, shape, stride or device other than these.
    """
    if goes_to_operator("x weight", x, weight):
        traced: tuple[Tensor, Tensor] = torch.ops.fp8gemm.quantize_rms_norm(x, weight, eps)
        return traced
    return direct_rms_norm(x, weight, eps)


def quantize_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """`quantize_rms_norm` of ``x + residual``, which is rounded to their dtype before.

    Args:
        x, weight, eps: as in `quantize_rms_norm`.
        residual: of x's shape, dtype and device, its last dimension contiguous.

    Returns:
        Codes, scales, and the rounded sum, (M, K) of x's dtype, contiguous: the next layer's residual.

    Raises:
        InputError: a dtype, shape, stride or device other than these.
    """
    if goes_to_operator("x residual weight", x, residual, weight):
        traced: tuple[Tensor, Tensor, Tensor] = torch.ops.fp8gemm.quantize_add_rms_norm(x, residual, weight, eps)
        return traced
    return direct_add_rms_norm(x, residual, weight, eps)


# The same of tensors with memory, traced by nobody: what the functions above and their operators compute.


def direct_activation(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`quantize_activation`, scales MN-major."""
    check_rows(x, counts)
    memory.check_addresses(x=x, counts=counts)
    if counts is not None:
        return _quantize_masked(QuantizeSource.PLAIN, x, counts)
    if uses_reference(x):
        return _mn_major(reference.quantize_rows(x))
    return quantize_rows(QuantizeSource.PLAIN, x)


def direct_activation_out(x: Tensor, codes: Tensor, scales: Tensor) -> None:
    """`quantize_activation` into ``codes`` (M, K) e4m3 and ``scales`` (M, ceil(K/128)) float32, of any strides."""
    check_rows(x, None)
    check_quantized(x, codes, scales)
    new_codes, new_scales = direct_activation(x)
    codes.copy_(new_codes)
    scales.copy_(new_scales)


def activation_into(x: Tensor, codes: Tensor, scales: Tensor) -> None:
    """`quantize_activation` into contiguous ``codes`` (M, K) and MN-major ``scales`` that ``x`` does not overlap."""
    check_rows(x, None)
    check_quantized(x, codes, scales)
    memory.check_addresses(x=x)
    if uses_reference(x):
        new_codes, new_scales = reference.quantize_rows(x)
        codes.copy_(new_codes)
        scales.copy_(new_scales)
    else:
        quantize_rows_into(QuantizeSource.PLAIN, x, codes, scales)


def direct_weight(w: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_weight`."""
    check_matrix("w", w, shape="(N, K)")
    memory.check_addresses(w=w)
    return reference.quantize_blocks(w) if uses_reference(w) else quantize_blocks(w)


def direct_with_transpose(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`quantize_with_transpose`."""
    check_matrix("x", x, shape="(M, K)")
    memory.check_addresses(x=x)
    if not uses_reference(x):
        return quantize_both_ways(x)
    codes, scales, of_transpose, their_scales = reference.quantize_with_transpose(x)
    return codes, to_mn_major(scales), of_transpose, to_mn_major(their_scales)


def direct_silu_mul(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`quantize_silu_mul`."""
    check_rows(x, counts, parts=2)
    memory.check_addresses(x=x, counts=counts)
    if counts is not None:
        return _quantize_masked(QuantizeSource.SILU_MUL, x, counts)
    if uses_reference(x):
        return _mn_major(reference.quantize_rows(reference.silu_mul(x)))
    return quantize_rows(QuantizeSource.SILU_MUL, x)


def direct_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`quantize_rms_norm`."""
    check_norm(x, weight, eps)
    memory.check_addresses(x=x, weight=weight)
    if uses_reference(x):
        return _mn_major(reference.quantize_rows(reference.rms_norm(x, weight, eps)))
    return quantize_norm(x, None, weight, eps)[:2]


def direct_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`quantize_add_rms_norm`."""
    check_norm(x, weight, eps)
    check_residual(residual, x)
    memory.check_addresses(x=x, residual=residual, weight=weight)
    if uses_reference(x):
        normed, summed = reference.add_rms_norm(x, residual, weight, eps)
        return *_mn_major(reference.quantize_rows(normed)), summed
    return quantize_norm(x, residual, weight, eps)


def _quantize_masked(source: QuantizeSource, x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    if not uses_reference(x):
        return quantize_masked(source, x, counts)
    rows = reference.keep_rows(x, counts).flatten(0, 1)
    codes, scales = reference.quantize_rows(reference.silu_mul(rows) if source is QuantizeSource.SILU_MUL else rows)
    groups, max_m, blocks = *x.shape[:2], scales.shape[1]
    of_groups = empty_mn_major_groups(groups, max_m, blocks, device=x.device)
    return codes.unflatten(0, (groups, max_m)), of_groups.copy_(scales.unflatten(0, (groups, max_m)))


def _mn_major(quantized: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    codes, scales = quantized
    return codes, to_mn_major(scales)
