"""Grouped products: one launch multiplies the rows of many groups, each with a weight of its own.

A group is an expert of a mixture, say. What belongs to which group lies in device memory, so that a CUDA graph may be
replayed with other groups; the host never waits for it. Sizes of groups are any numbers, 0 included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fp8gemm.products.operators  # noqa: F401  # which are what is traced
from fp8gemm.checks.dtypes import OUTPUTS, dtype_of
from fp8gemm.products.grouped_products import multiply_grouped, multiply_k_grouped, multiply_masked
from fp8gemm.products.watched import goes_to_operator


def gemm_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    expected_m: int | None = None,
    batch_invariant: bool | None = None,
) -> Tensor:
    """``D[m, n] = sum_k A[m, k] B[g, n, k]``, scaled as in `fp8gemm.gemm`, where g is the group of row m.

    Rows of one group are neighbours; of what sizes groups are, and at which rows they begin, makes no difference. Rows
    of no group are not computed, and in ``out`` not touched; what a new output holds there is not defined.

    Args:
        a: (M, K) float8_e4m3fn, K contiguous and a multiple of 16; rows any multiple of 16 bytes apart. M may be 0.
        scales_a: (M, ceil(K/128)) float32 multipliers; MN-major ones are read in place, others copied first.
        b: (G, N, K) float8_e4m3fn, K contiguous, groups one behind the other.
        scales_b: (G, ceil(N/128), ceil(K/128)) float32 multipliers, contiguous, one per 128x128 block.
        indices: (M,) int32 or int64, the group of each row, or -1 for none; groups in any order.
        offsets: int32 or int64, instead of indices. (G + 1,): rows offsets[g] to offsets[g + 1] are those of group g;
            (G,): sums of sizes, group g ends before row offsets[g] and begins where the one before ends; (2, G): first
            rows of the groups, and the rows behind their last. Values outside 0 to M count as these.
        out: (M, N) to write to, of any strides, in memory that no input occupies.
        out_dtype: bfloat16, float16 or float32, as torch's or by name; that of ``out`` by default, bfloat16 without it.
        expected_m: rows of a typical group, which a kernel is chosen for; ceil(M / G) by default. Any number is right.
        batch_invariant: whether a row of the result has the same bits whatever the other rows and groups are, those of
            `fp8gemm.gemm` with the same promise. ``FP8GEMM_BATCH_INVARIANT`` by default.

    Returns:
        ``out``, or a new (M, N) tensor, row-major.

    Raises:
        InputError: an operand is not as described; nothing was launched. With ``FP8GEMM_CHECK_GROUPS``, which waits for
            the GPU, also groups that are not.
        UnsupportedDeviceError, CompileError, CacheMissError, DriverError: as `fp8gemm.gemm`.
    """
    if out_dtype is None:
        out_dtype = getattr(out, "dtype", torch.bfloat16)
    operands, options = (a, scales_a, b, scales_b, indices, offsets, out), (out_dtype, expected_m, batch_invariant)
    if not goes_to_operator("a scales_a b scales_b indices? offsets? out?", *operands):
        return multiply_grouped(operands, options)
    out_dtype = dtype_of("out_dtype", out_dtype, OUTPUTS)
    if out is None:
        product: Tensor = torch.ops.fp8gemm.gemm_grouped(*operands[:-1], out_dtype, expected_m, batch_invariant)
        return product
    torch.ops.fp8gemm.gemm_grouped_out(*operands[:-1], expected_m, batch_invariant, out=out)
    return out


def gemm_masked(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    expected_m: int | None = None,
    batch_invariant: bool | None = None,
) -> Tensor:
    """``D[g, m, n] = sum_k A[g, m, k] B[g, n, k]`` for the first ``counts[g]`` rows of each group, scaled as in `gemm`.

    Other rows are neither computed nor written; what a new output holds there is not defined.

    Args:
        a: (G, max_m, K) float8_e4m3fn, K contiguous and a multiple of 16, groups one behind the other.
        scales_a: (G, max_m, ceil(K/128)) float32 multipliers; those of `fp8gemm.scales.empty_mn_major_groups` are read
            in place, others may be copied first.
        b: (G, N, K) float8_e4m3fn, K contiguous, groups one behind the other.
        scales_b: (G, ceil(N/128), ceil(K/128)) float32 multipliers, contiguous, one per 128x128 block.
        counts: (G,) int32 or int64. Less than 0 counts as 0, more than max_m as max_m.
        out: (G, max_m, N) to write to, groups one behind the other, in memory that no input occupies.
        out_dtype, batch_invariant: as in `gemm_grouped`.
        expected_m: valid rows of a typical group, which a kernel is chosen for; max_m by default. Any number is right.

    Returns:
        ``out``, or a new (G, max_m, N) tensor, row-major.

    Raises:
        InputError: an operand is not as described; nothing was launched. With ``FP8GEMM_CHECK_GROUPS``, which waits for
            the GPU, also counts that are not.
        UnsupportedDeviceError, CompileError, CacheMissError, DriverError: as `fp8gemm.gemm`.
    """
    if out_dtype is None:
        out_dtype = getattr(out, "dtype", torch.bfloat16)
    operands, options = (a, scales_a, b, scales_b, counts, out), (out_dtype, expected_m, batch_invariant)
    if not goes_to_operator("a scales_a b scales_b counts out?", *operands):
        return multiply_masked(operands, options)
    out_dtype = dtype_of("out_dtype", out_dtype, OUTPUTS)
    if out is None:
        product: Tensor = torch.ops.fp8gemm.gemm_masked(*operands[:-1], out_dtype, expected_m, batch_invariant)
        return product
    torch.ops.fp8gemm.gemm_masked_out(*operands[:-1], expected_m, batch_invariant, out=out)
    return out


def gemm_grouped_again(
    a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, *, offsets: Tensor, **options: Any
) -> Tensor:
    """`gemm_grouped` behind another one of the same groups, with quantisers of ours between them: experts' second.

    Its kernel may ask for the weight while the quantiser runs. ``b``, ``scales_b`` and ``offsets`` are there by then:
    it starts when each CTA of the quantiser has started, these start when each CTA of the product before has waited for
    what was ahead of that, and nothing has written them since. Where calls are traced, others may come between them,
    and it is `gemm_grouped`.
    """
    operands = a, scales_a, b, scales_b, None, offsets, None
    if goes_to_operator("a scales_a b scales_b indices? offsets? out?", *operands):
        return gemm_grouped(a, scales_a, b, scales_b, offsets=offsets, **options)
    given = options["out_dtype"], options["expected_m"], options["batch_invariant"]
    return multiply_grouped(operands, given, again=True)


def gemm_masked_again(
    a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, counts: Tensor, **options: Any
) -> Tensor:
    """`gemm_masked` behind another one of the same groups, as `gemm_grouped_again`."""
    operands = a, scales_a, b, scales_b, counts, None
    if goes_to_operator("a scales_a b scales_b counts out?", *operands):
        return gemm_masked(a, scales_a, b, scales_b, counts, **options)
    given = options["out_dtype"], options["expected_m"], options["batch_invariant"]
    return multiply_masked(operands, given, again=True)


def gemm_k_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    offsets: Tensor,
    *,
    c: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``D[g, m, n] = sum_{k of group g} A[m, k] B[n, k] (+ C[g, m, n])``: weight gradients of many groups.

    Sums are FP32, K blocks in ascending order, then C. An empty group's D is its C bit for bit, or 0 without one.

    Args:
        a: (M, K) float8_e4m3fn, K contiguous, the columns of all groups side by side.
        scales_a: (M, K/128) float32 multipliers; MN-major ones are read in place, others copied first.
        b: (N, K) float8_e4m3fn, laid out like ``a``.
        scales_b: (N, K/128) float32 multipliers, one per row and 128 columns, laid out like ``scales_a``.
        offsets: int32 or int64, (G + 1,), (2, G), or if ``c`` or ``out`` tell G also (G,), as in `gemm_grouped`, but
            along K, and multiples of 128.
        c: (G, M, N) float32 to add, groups one behind the other.
        out: (G, M, N) float32 to write to; it may be ``c`` itself, to accumulate in place.

    Returns:
        ``out``, or a new (G, M, N) float32 tensor.

    Raises:
        InputError: an operand is not as described; nothing was launched. With ``FP8GEMM_CHECK_GROUPS``, which waits for
            the GPU, also offsets that are not.
        UnsupportedDeviceError, CompileError, CacheMissError, DriverError: as `fp8gemm.gemm`.
    """
    operands = a, scales_a, b, scales_b, offsets, c, out
    if not goes_to_operator("a scales_a b scales_b offsets c? out?", *operands):
        return multiply_k_grouped(operands)
    if out is None:
        product: Tensor = torch.ops.fp8gemm.gemm_k_grouped(*operands[:-1])
        return product
    torch.ops.fp8gemm.gemm_k_grouped_out(*operands[:-1], out=out)
    return out
