"""Checks of what a user passes to a grouped product."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.checks import operands
from fp8gemm.checks.dtypes import OUTPUTS, check_dtype
from fp8gemm.checks.tensors import (
    check_codes,
    check_device,
    check_float32,
    check_integers,
    check_no_gradient,
    check_tensor,
    check_whole,
    found,
)
from fp8gemm.errors import InputError
from fp8gemm.scales import block_count
from fp8gemm.sizes import SCALE_BLOCK, check_rows_of_all, check_size, holds
from fp8gemm.tuning.grouped_problem import MAX_GROUPS


def check_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    indices: Tensor | None,
    offsets: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype,
    expected_m: int | None,
) -> tuple[int, int]:
    """The arguments of `fp8gemm.gemm_grouped` fit together. Returns the shape of the output, (M, N)."""
    check_dtype("out_dtype", out_dtype, OUTPUTS)
    groups, n, _ = check_weights(b, scales_b)
    operands.check_a(a, scales_a, b)
    m = a.shape[0]
    if (indices is None) == (offsets is None):
        raise InputError(f"expected either indices or offsets, got {'neither' if indices is None else 'both'}")
    if indices is not None:
        check_integers("indices", indices, b)
        if indices.shape != (m,):
            raise InputError(f"indices: expected shape ({m},) = (M,), got {tuple(indices.shape)}")
    elif offsets is not None:
        check_offsets(offsets, b, groups)
    _check_expected(expected_m)
    if out is not None:
        check_output("out", out, (m, n), out_dtype, b)
    return m, n


def check_masked(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    out: Tensor | None,
    out_dtype: torch.dtype,
    expected_m: int | None,
) -> tuple[int, int, int]:
    """The arguments of `fp8gemm.gemm_masked` fit together. Returns the shape of the output, (G, max_m, N)."""
    check_dtype("out_dtype", out_dtype, OUTPUTS)
    groups, n, k = check_weights(b, scales_b)
    check_tensor("a", a)
    if a.dim() != 3 or a.shape[0] != groups or a.shape[2] != k:
        raise InputError(f"a: expected shape (G, max_m, K) = ({groups}, max_m, {k}) as b, got {tuple(a.shape)}")
    max_m = a.shape[1]
    check_rows_of_all("a", "max_m", groups, max_m)
    check_codes("a", one_behind_the_other("a", a), "(G, max_m, K)")
    check_float32("scales_a", scales_a, (groups, max_m, block_count(k)), "(G, max_m, ceil(K/128))")
    check_device("a", a, b)
    check_device("scales_a", scales_a, b)
    # Scales of all groups lie side by side.
    check_rows_of_all("scales_a", "ceil(K/128)", groups, block_count(k))
    check_integers("counts", counts, b)
    if counts.shape != (groups,):
        raise InputError(f"counts: expected shape ({groups},) = (G,), got {tuple(counts.shape)}")
    _check_expected(expected_m)
    if out is not None:
        check_output("out", out, (groups, max_m, n), out_dtype, b)
    return groups, max_m, n


def check_k_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    offsets: Tensor,
    c: Tensor | None,
    out: Tensor | None,
) -> tuple[int, int, int]:
    """The arguments of `fp8gemm.gemm_k_grouped` fit together. Returns the shape of the output, (G, M, N)."""
    check_tensor("b", b)
    for name, codes, scales, rows in (("a", a, scales_a, "M"), ("b", b, scales_b, "N")):
        check_tensor(name, codes)
        check_codes(name, codes, f"({rows}, K)")
        if codes.shape[0] == 0 or codes.shape[1] % SCALE_BLOCK:
            raise InputError(
                f"{name}: expected shape ({rows}, K) with {rows} >= 1 and K a multiple of 128, got {tuple(codes.shape)}"
            )
        check_size(name, rows, codes.shape[0])
        check_float32(f"scales_{name}", scales, (codes.shape[0], codes.shape[1] // 128), f"({rows}, K/128)")
        check_device(f"scales_{name}", scales, b)
    check_device("a", a, b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"a: expected K = {b.shape[1]} as in b, got shape {tuple(a.shape)}")
    outputs = [(name, tensor) for name, tensor in (("c", c), ("out", out)) if tensor is not None]
    for name, tensor in outputs:
        check_tensor(name, tensor)
    groups = check_offsets(offsets, b, next((tensor.shape[0] for _, tensor in outputs if tensor.dim() == 3), None))
    shape = groups, a.shape[0], b.shape[0]
    check_rows_of_all("a", "M", groups, a.shape[0])
    for name, tensor in outputs:
        check_output(name, tensor, shape, torch.float32, b)
    return shape


def check_weights(b: Tensor, scales_b: Tensor) -> tuple[int, int, int]:
    """``b`` is (G, N, K) e4m3, K contiguous, groups one behind the other; ``scales_b`` its float32 block scales.

    Returns:
        G, N and K.
    """
    check_tensor("b", b)
    if b.dim() != 3:
        raise InputError(f"b: expected shape (G, N, K), got {tuple(b.shape)}")
    groups, n, k = b.shape
    if not 1 <= groups <= MAX_GROUPS:
        raise InputError(f"b: expected shape (G, N, K) with 1 <= G <= {MAX_GROUPS}, got {tuple(b.shape)}")
    if n == 0:
        raise InputError(f"b: expected N >= 1, got shape {tuple(b.shape)}")
    check_rows_of_all("b", "N", groups, n)
    check_codes("b", one_behind_the_other("b", b), "(G, N, K)")
    check_tensor("scales_b", scales_b)
    expected = (groups, block_count(n), block_count(k))
    if scales_b.dtype != torch.float32 or scales_b.shape != expected or not scales_b.is_contiguous():
        raise InputError(
            f"scales_b: expected contiguous torch.float32 of shape {expected} = (G, ceil(N/128), ceil(K/128)), got "
            f"{found(scales_b)}, strides {scales_b.stride()}"
        )
    check_no_gradient("scales_b", scales_b)
    check_device("scales_b", scales_b, b)
    return groups, n, k


def check_offsets(offsets: Tensor, b: Tensor, groups: int | None = None) -> int:
    """``offsets`` is (G + 1,), (G,) or (2, G) int32 or int64 where ``b`` is; without ``groups`` not (G,).

    Returns:
        G.
    """
    check_integers("offsets", offsets, b)
    shape = tuple(offsets.shape)
    if groups is None:
        groups_found = shape[1] if len(shape) == 2 and shape[0] == 2 else shape[0] - 1 if len(shape) == 1 else 0
        if not 1 <= groups_found <= MAX_GROUPS:
            raise InputError(f"offsets: expected shape (G + 1,) or (2, G) with 1 <= G <= {MAX_GROUPS}, got {shape}")
        return groups_found
    if shape not in ((groups + 1,), (groups,), (2, groups)):
        raise InputError(
            f"offsets: expected shape ({groups + 1},) = (G + 1,), ({groups},) = (G,) or (2, {groups}) = (2, G), got "
            f"{shape}"
        )
    return groups


def check_output(name: str, out: Tensor, shape: tuple[int, ...], dtype: torch.dtype, b: Tensor) -> None:
    """``out`` is ``shape`` of ``dtype`` where ``b`` is, groups one behind the other, each element at an own address."""
    check_tensor(name, out)
    if out.shape != shape or out.dtype != dtype:
        raise InputError(f"{name}: expected {dtype} of shape {shape}, got {found(out)}")
    rows = one_behind_the_other(name, out) if out.dim() == 3 else out
    operands.check_output(name, rows, (rows.shape[0], rows.shape[1]), dtype, b)


def one_behind_the_other(name: str, x: Tensor) -> Tensor:
    """(G, R, C) as (G R, C), if rows of a group follow those of the group before at the same pitch."""
    groups, rows, columns = x.shape
    if holds(groups > 1) and holds(rows > 0) and holds(x.stride(0) != rows * x.stride(1)):
        raise InputError(
            f"{name}: expected groups one behind the other, stride(0) = {rows} * stride(1), got strides {x.stride()}; "
            f"pass .contiguous()"
        )
    return x.as_strided((groups * rows, columns), (x.stride(1), x.stride(2)))


def _check_expected(expected_m: int | None) -> None:
    if expected_m is not None:
        check_whole("expected_m", expected_m, 1)
