"""Fake kernels: shapes, dtypes and strides of what each operator returns, and errors for operands that cannot be.

The checks are those of the operators themselves, but for addresses, which do not exist here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import CODES
from fp8gemm.checks.groups import check_grouped, check_k_grouped, check_masked
from fp8gemm.checks.operands import check_product
from fp8gemm.checks.quantizers import check_matrix, check_norm, check_quantized, check_residual, check_rows
from fp8gemm.checks.routing import (
    check_devices,
    check_ids,
    check_offsets_of_routes,
    check_routes,
    check_sums,
    check_tokens,
)
from fp8gemm.scales import block_count, mn_major_pitch
from fp8gemm.sizes import SCALE_BLOCK


def _gemm(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    *_: object,
) -> Tensor:
    check_product(a, scales_a, b, scales_b, c, bias, None, out_dtype)
    return a.new_empty((a.shape[0], b.shape[0]), dtype=out_dtype)


def _gemm_out(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    *_: object,
    out: Tensor,
) -> None:
    check_product(a, scales_a, b, scales_b, c, bias, out, out.dtype)


def _quantised(x: Tensor, counts: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Codes (M, K), or with ``counts`` (G, max_m, K), and scales that are MN-major, in each group if there are any."""
    *groups, rows, _ = x.shape
    shape, pitch = (*groups, rows, block_count(k)), mn_major_pitch(rows)
    strides = (1, pitch) if counts is None else (shape[2] * pitch, 1, pitch)
    scales = x.new_empty_strided(shape, strides, dtype=torch.float32)
    return x.new_empty((*groups, rows, k), dtype=CODES), scales


def _quantize_activation(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    check_rows(x, counts)
    return _quantised(x, counts, x.shape[-1])


def _quantize_activation_out(x: Tensor, codes: Tensor, scales: Tensor) -> None:
    check_rows(x, None)
    check_quantized(x, codes, scales)


def _quantize_weight(w: Tensor) -> tuple[Tensor, Tensor]:
    check_matrix("w", w, shape="(N, K)")
    n, k = w.shape
    scales = w.new_empty((block_count(n), block_count(k)), dtype=torch.float32)
    return w.new_empty((n, k), dtype=CODES), scales


def _quantize_with_transpose(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_matrix("x", x, shape="(M, K)")
    m, k = x.shape
    transpose = x.new_empty((k, block_count(m) * SCALE_BLOCK))
    return *_quantised(x, None, k), *_quantised(transpose, None, transpose.shape[1])


def _quantize_silu_mul(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    check_rows(x, counts, parts=2)
    return _quantised(x, counts, x.shape[-1] // 2)


def _quantize_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    check_norm(x, weight, eps)
    return _quantised(x, None, x.shape[1])


def _quantize_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    check_norm(x, weight, eps)
    check_residual(residual, x)
    codes, scales = _quantised(x, None, x.shape[1])
    return codes, scales, x.new_empty(x.shape)


def _gemm_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    indices: Tensor | None,
    offsets: Tensor | None,
    out_dtype: torch.dtype,
    expected_m: int | None,
    *_: object,
) -> Tensor:
    shape = check_grouped(a, scales_a, b, scales_b, indices, offsets, None, out_dtype, expected_m)
    return a.new_empty(shape, dtype=out_dtype)


def _gemm_grouped_out(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    indices: Tensor | None,
    offsets: Tensor | None,
    expected_m: int | None,
    *_: object,
    out: Tensor,
) -> None:
    check_grouped(a, scales_a, b, scales_b, indices, offsets, out, out.dtype, expected_m)


def _gemm_masked(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    out_dtype: torch.dtype,
    expected_m: int | None,
    *_: object,
) -> Tensor:
    shape = check_masked(a, scales_a, b, scales_b, counts, None, out_dtype, expected_m)
    return a.new_empty(shape, dtype=out_dtype)


def _gemm_masked_out(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    expected_m: int | None,
    *_: object,
    out: Tensor,
) -> None:
    check_masked(a, scales_a, b, scales_b, counts, out, out.dtype, expected_m)


def _gemm_k_grouped(
    a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, offsets: Tensor, c: Tensor | None
) -> Tensor:
    return a.new_empty(check_k_grouped(a, scales_a, b, scales_b, offsets, c, None), dtype=torch.float32)


def _gemm_k_grouped_out(
    a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, offsets: Tensor, c: Tensor | None, *, out: Tensor
) -> None:
    check_k_grouped(a, scales_a, b, scales_b, offsets, c, out)


def _route(expert_ids: Tensor, num_experts: int, first_expert: int) -> tuple[Tensor, Tensor, Tensor]:
    check_ids(expert_ids, num_experts, first_expert)
    shape = expert_ids.shape
    offsets = expert_ids.new_empty((num_experts + 1,), dtype=torch.int32)
    return offsets, expert_ids.new_empty(shape, dtype=torch.int64), expert_ids.new_empty(shape, dtype=torch.bool)


def _quantize_permuted(
    x: Tensor, expert_ids: Tensor, num_experts: int, first_expert: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_matrix("x", x, shape="(T, K)")
    check_ids(expert_ids, num_experts, first_expert, x.shape[0])
    check_devices(x.device, expert_ids=expert_ids)
    return *_of_rows(x, expert_ids), *_route(expert_ids, num_experts, first_expert)


def _copy_to_rows(codes: Tensor, scales: Tensor, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    check_tokens(codes, scales)
    check_routes(rows, codes.shape[0])
    check_offsets_of_routes(offsets)
    check_devices(codes.device, scales=scales, rows=rows, offsets=offsets)
    return _of_rows(codes, rows)


def _of_rows(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of each row of ``x`` (T, K), as often as it has rows (T, top_k)."""
    count, pitch = rows.shape[0] * rows.shape[1], mn_major_pitch(rows.shape[0] * rows.shape[1])
    scales = x.new_empty_strided((count, block_count(x.shape[1])), (1, pitch), dtype=torch.float32)
    return x.new_empty((count, x.shape[1]), dtype=CODES), scales


def _unpermute(y: Tensor, rows: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    check_sums(y, rows, kept, weights)
    return y.new_empty((rows.shape[0], y.shape[1]))


_ALL: tuple[Callable[..., Any], ...] = (
    *(_gemm, _gemm_out, _gemm_grouped, _gemm_grouped_out, _gemm_masked, _gemm_masked_out),
    *(_gemm_k_grouped, _gemm_k_grouped_out, _quantize_activation, _quantize_activation_out),
    *(_quantize_weight, _quantize_with_transpose, _quantize_silu_mul, _quantize_rms_norm, _quantize_add_rms_norm),
    *(_route, _quantize_permuted, _copy_to_rows, _unpermute),
)
FAKES = {fake.__name__.removeprefix("_"): fake for fake in _ALL}
"""By the operator's name."""
