"""Checks of what a user passes to a grouped product, beside those of `fp8gemm.operands`.

Each check raises `InputError` with what was expected and what came, before anything is allocated or launched. What lies
in device memory, sizes of groups above all, is not looked at, for that would wait for the GPU: kernels clamp it. With
``FP8GEMM_CHECK_GROUPS`` it is looked at all the same (`fp8gemm.group_checks`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm import operands
from fp8gemm.errors import InputError
from fp8gemm.scales import block_count
from fp8gemm.tuning.grouped_problem import MAX_GROUPS

_INTEGERS = (torch.int32, torch.int64)


def check_weights(b: Tensor, scales_b: Tensor) -> tuple[int, int, int]:
    """``b`` is (G, N, K) e4m3, K contiguous, groups one behind the other; ``scales_b`` its float32 block scales.

    Returns:
        G, N and K.
    """
    if b.dim() != 3 or not 1 <= b.shape[0] <= MAX_GROUPS:
        raise InputError(f"b: expected shape (G, N, K) with 1 <= G <= {MAX_GROUPS}, got {tuple(b.shape)}")
    groups, n, k = b.shape
    if n == 0:
        raise InputError(f"b: expected N >= 1, got shape {tuple(b.shape)}")
    operands.check_codes("b", _one_behind_the_other("b", b), "(G, N, K)")
    expected = (groups, block_count(n), block_count(k))
    if scales_b.dtype != torch.float32 or scales_b.shape != expected or not scales_b.is_contiguous():
        raise InputError(
            f"scales_b: expected contiguous torch.float32 of shape {expected} = (G, ceil(N/128), ceil(K/128)), got "
            f"{scales_b.dtype} of shape {tuple(scales_b.shape)}, strides {scales_b.stride()}"
        )
    operands.check_no_gradient("scales_b", scales_b)
    operands.check_device("scales_b", scales_b, b)
    return groups, n, k


def check_masked(a: Tensor, scales_a: Tensor, b: Tensor) -> int:
    """``a`` is (G, max_m, K) e4m3, groups one behind the other; ``scales_a`` its (G, max_m, ceil(K/128)) float32.

    Returns:
        max_m.
    """
    groups, _, k = b.shape
    if a.dim() != 3 or a.shape[0] != groups or a.shape[2] != k:
        raise InputError(f"a: expected shape (G, max_m, K) = ({groups}, max_m, {k}) as b, got {tuple(a.shape)}")
    operands.check_codes("a", _one_behind_the_other("a", a), "(G, max_m, K)")
    max_m = a.shape[1]
    expected = (groups, max_m, block_count(k))
    if scales_a.dtype != torch.float32 or scales_a.shape != expected:
        raise InputError(
            f"scales_a: expected torch.float32 of shape {expected} = (G, max_m, ceil(K/128)), got {scales_a.dtype} of "
            f"shape {tuple(scales_a.shape)}"
        )
    operands.check_no_gradient("scales_a", scales_a)
    operands.check_device("a", a, b)
    operands.check_device("scales_a", scales_a, b)
    return max_m


def check_k_grouped(a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor) -> None:
    """``a`` (M, K) and ``b`` (N, K) are e4m3 with one scale per row and 128 columns, K a multiple of 128."""
    for name, codes, scales, rows in (("a", a, scales_a, "M"), ("b", b, scales_b, "N")):
        operands.check_codes(name, codes, f"({rows}, K)")
        if codes.shape[0] == 0 or codes.shape[1] % 128:
            raise InputError(
                f"{name}: expected shape ({rows}, K) with {rows} >= 1 and K a multiple of 128, got {tuple(codes.shape)}"
            )
        expected = (codes.shape[0], codes.shape[1] // 128)
        if scales.dtype != torch.float32 or scales.shape != expected:
            raise InputError(
                f"scales_{name}: expected torch.float32 of shape {expected} = ({rows}, K/128), got {scales.dtype} of "
                f"shape {tuple(scales.shape)}"
            )
        operands.check_no_gradient(f"scales_{name}", scales)
        operands.check_device(f"scales_{name}", scales, b)
    operands.check_device("a", a, b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"a: expected K = {b.shape[1]} as in b, got shape {tuple(a.shape)}")


def check_indices(indices: Tensor, m: int, b: Tensor) -> None:
    """``indices`` is (M,) int32 or int64 where ``b`` is."""
    _check_integers("indices", indices, b)
    if indices.shape != (m,):
        raise InputError(f"indices: expected shape ({m},) = (M,), got {tuple(indices.shape)}")


def check_offsets(offsets: Tensor, b: Tensor, groups: int | None = None) -> int:
    """``offsets`` is (G + 1,), (G,) or (2, G) int32 or int64 where ``b`` is; without ``groups`` not (G,).

    Returns:
        G.
    """
    _check_integers("offsets", offsets, b)
    shape = tuple(offsets.shape)
    if groups is None:
        found = shape[1] if len(shape) == 2 and shape[0] == 2 else shape[0] - 1 if len(shape) == 1 else 0
        if not 1 <= found <= MAX_GROUPS:
            raise InputError(f"offsets: expected shape (G + 1,) or (2, G) with 1 <= G <= {MAX_GROUPS}, got {shape}")
        return found
    if shape not in ((groups + 1,), (groups,), (2, groups)):
        raise InputError(
            f"offsets: expected shape ({groups + 1},) = (G + 1,), ({groups},) = (G,) or (2, {groups}) = (2, G), got "
            f"{shape}"
        )
    return groups


def check_counts(counts: Tensor, b: Tensor) -> None:
    """``counts`` is (G,) int32 or int64 where ``b`` is."""
    _check_integers("counts", counts, b)
    if counts.shape != b.shape[:1]:
        raise InputError(f"counts: expected shape ({b.shape[0]},) = (G,), got {tuple(counts.shape)}")


def check_expected(expected_m: int | None, otherwise: int) -> int:
    """``expected_m``, or what stands for it where none is given."""
    if expected_m is None:
        return max(otherwise, 1)
    if expected_m < 1:
        raise InputError(f"expected_m: expected at least 1, got {expected_m}")
    return expected_m


def check_output(name: str, out: Tensor, shape: tuple[int, ...], dtype: torch.dtype, b: Tensor) -> Tensor:
    """``out`` is ``shape`` of ``dtype`` where ``b`` is, groups one behind the other, each element at its own address.

    Returns:
        It as a matrix: its rows, all groups'.
    """
    if out.shape != shape or out.dtype != dtype:
        raise InputError(f"{name}: expected {dtype} of shape {shape}, got {out.dtype} of shape {tuple(out.shape)}")
    rows = _one_behind_the_other(name, out) if out.dim() == 3 else out
    operands.check_output(rows, (rows.shape[0], rows.shape[1]), dtype, b)
    return rows


def _one_behind_the_other(name: str, x: Tensor) -> Tensor:
    """(G, R, C) as (G R, C), if rows of a group follow those of the group before at the same pitch."""
    groups, rows, columns = x.shape
    if groups > 1 and rows and x.stride(0) != rows * x.stride(1):
        raise InputError(
            f"{name}: expected groups one behind the other, stride(0) = {rows} * stride(1), got strides {x.stride()}; "
            f"pass .contiguous()"
        )
    return x.as_strided((groups * rows, columns), (x.stride(1), x.stride(2)))


def _check_integers(name: str, tensor: Tensor, b: Tensor) -> None:
    if tensor.dtype not in _INTEGERS:
        raise InputError(f"{name}: expected torch.int32 or torch.int64, got {tensor.dtype}")
    if not tensor.is_contiguous():
        raise InputError(f"{name}: expected contiguous, got strides {tensor.stride()}; pass .contiguous()")
    operands.check_device(name, tensor, b)
