"""The grouped products in plain PyTorch: `gemm_reference` group by group, on any device.

The host reads where the groups lie, so a CUDA tensor of indices, offsets or counts is waited for.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.reference.gemm import OUT_DTYPES, check_operands, dtype_of, gemm_reference
from fp8gemm.sizes import SCALE_BLOCK


def row_ranges(
    rows: int, groups: int, *, indices: Tensor | None = None, offsets: Tensor | None = None
) -> list[tuple[int, int]]:
    """Where each of ``groups`` groups lies among ``rows`` rows.

    Args:
        rows: M, or for products grouped along K the number of columns.
        groups: G.
        indices: (rows,) int32 or int64, the group of each row. An index below 0 or past G - 1 means no group. A group
            whose rows are no one run reaches from its first row to its last.
        offsets: int32 or int64: (G + 1,), where group g reaches from ``offsets[g]`` to ``offsets[g + 1]``; (G,), where
            it reaches from the end of group g - 1, or 0, to ``offsets[g]``; or (2, G), all beginnings and all ends.

    Returns:
        For each group its first row and the one past its last, within [0, rows]; equal where it is empty.

    Raises:
        InputError: not exactly one of ``indices`` and ``offsets``, or one of another shape or dtype.
    """
    if (indices is None) == (offsets is None):
        raise InputError(f"indices, offsets: expected one of the two, got {'both' if indices is not None else 'none'}")
    if offsets is None:
        assert indices is not None
        return _ranges_of_indices(rows, groups, indices)
    _check_integers("offsets", offsets)
    shape = tuple(offsets.shape)
    limits = offsets.clamp(0, rows).tolist()
    if shape == (2, groups):
        ranges = list(zip(*limits, strict=True))
    elif shape == (groups + 1,):
        ranges = list(pairwise(limits))
    elif shape == (groups,):
        ranges = list(pairwise([0, *limits]))
    else:
        raise InputError(
            f"offsets: expected shape {(groups + 1,)} = (G + 1,), {(groups,)} = (G,) or {(2, groups)} = (2, G), "
            f"got {shape}"
        )
    return [(begin, max(begin, end)) for begin, end in ranges]


def gemm_grouped_reference(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | str = torch.bfloat16,
) -> Tensor:
    """`gemm_reference` of each group's rows of A and that group's B.

    Args:
        a: (M, K) float8_e4m3fn, any strides.
        scales_a: (M, ceil(K/128)) float32, any strides.
        b: (G, N, K) float8_e4m3fn, any strides.
        scales_b: (G, ceil(N/128), ceil(K/128)) float32, or (G, N, ceil(K/128)), any strides.
        indices, offsets: which rows are whose, as in `row_ranges`.
        out: (M, N) of the dtypes that `gemm_reference` makes, any strides; rows of no group are left as they are.
        out_dtype: where ``out`` is None.

    Returns:
        ``out``, or a new (M, N) with zeros in rows of no group.

    Raises:
        InputError: as `row_ranges` and `gemm_reference`.
    """
    groups, n = _check_groups(b, scales_b)
    if groups:
        check_operands(a, scales_a, b[0], scales_b[0])
    ranges = row_ranges(a.shape[0], groups, indices=indices, offsets=offsets)
    out = _output(out, (a.shape[0], n), out_dtype, a)
    for group, (begin, end) in enumerate(ranges):
        rows = slice(begin, end)
        operands = (a[rows], scales_a[rows], b[group], scales_b[group])
        if end > begin:
            out[rows] = gemm_reference(*operands, out_dtype=out.dtype)
    return out


def gemm_masked_reference(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | str = torch.bfloat16,
) -> Tensor:
    """`gemm_reference` of the first ``counts[g]`` rows of each group's A and that group's B.

    Args:
        a: (G, max_m, K) float8_e4m3fn, any strides.
        scales_a: (G, max_m, ceil(K/128)) float32, any strides.
        b, scales_b: as in `gemm_grouped_reference`.
        counts: (G,) int32 or int64, taken for 0 below it and for max_m above it.
        out: (G, max_m, N) of the dtypes that `gemm_reference` makes, any strides; other rows are left as they are.
        out_dtype: where ``out`` is None.

    Returns:
        ``out``, or a new (G, max_m, N) with zeros in all other rows.

    Raises:
        InputError: shapes or dtypes do not fit together.
    """
    groups, n = _check_groups(b, scales_b)
    if a.ndim != 3 or scales_a.ndim != 3 or a.shape[0] != groups or scales_a.shape[0] != groups:
        raise InputError(
            f"a, scales_a: expected ({groups}, max_m, K) and ({groups}, max_m, ceil(K/128)), got {tuple(a.shape)} and "
            f"{tuple(scales_a.shape)}"
        )
    if groups:
        check_operands(a[0], scales_a[0], b[0], scales_b[0])
    _check_integers("counts", counts)
    if counts.shape != (groups,):
        raise InputError(f"counts: expected shape {(groups,)} = (G,), got {tuple(counts.shape)}")
    out = _output(out, (groups, a.shape[1], n), out_dtype, a)
    for group, count in enumerate(counts.clamp(0, a.shape[1]).tolist()):
        if count:
            operands = (a[group, :count], scales_a[group, :count], b[group], scales_b[group])
            out[group, :count] = gemm_reference(*operands, out_dtype=out.dtype)
    return out


def gemm_k_grouped_reference(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    offsets: Tensor,
    *,
    c: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`gemm_reference` of each group's columns of A and of B, plus that group's C.

    Args:
        a: (M, K) float8_e4m3fn, any strides; K is the sum of all groups' sizes.
        scales_a: (M, K/128) float32, any strides.
        b: (N, K) float8_e4m3fn, any strides.
        scales_b: (N, K/128) float32, any strides.
        offsets: as in `row_ranges`, but of columns, multiples of 128.
        c: (G, M, N) float32, any strides; None for zeros. An empty group's output is its C, bit for bit.
        out: (G, M, N) float32, any strides; it may be ``c``.

    Returns:
        ``out``, or a new (G, M, N) float32.

    Raises:
        InputError: shapes or dtypes do not fit together, or an offset is no multiple of 128.
    """
    check_operands(a, scales_a, b, scales_b)
    groups = _group_count(offsets, c if c is not None else out)
    shape = (groups, a.shape[0], b.shape[0])
    if c is not None and (c.dtype != torch.float32 or c.shape != shape):
        raise InputError(f"c: expected torch.float32 of shape {shape}, got {c.dtype} of shape {tuple(c.shape)}")
    ranges = row_ranges(a.shape[1], groups, offsets=offsets)
    if any(limit % SCALE_BLOCK for group in ranges for limit in group):
        raise InputError(f"offsets: expected multiples of {SCALE_BLOCK}, got {offsets.tolist()} for K = {a.shape[1]}")
    out = _output(out, shape, torch.float32, a)
    for group, (begin, end) in enumerate(ranges):
        addend = None if c is None else c[group]
        if end > begin:
            columns, blocks = slice(begin, end), slice(begin // SCALE_BLOCK, end // SCALE_BLOCK)
            operands = (a[:, columns], scales_a[:, blocks], b[:, columns], scales_b[:, blocks])
            out[group] = gemm_reference(*operands, c=addend, out_dtype=torch.float32)
        elif addend is None:
            out[group] = 0.0
        elif out is not c:
            out[group] = addend
    return out


def _ranges_of_indices(rows: int, groups: int, indices: Tensor) -> list[tuple[int, int]]:
    _check_integers("indices", indices)
    if indices.shape != (rows,):
        raise InputError(f"indices: expected shape {(rows,)} = (M,), got {tuple(indices.shape)}")
    ranges = [(0, 0)] * groups
    for row, group in enumerate(indices.tolist()):
        if 0 <= group < groups:
            begin, end = ranges[group]
            ranges[group] = (begin if end > begin else row, row + 1)
    return ranges


def _group_count(offsets: Tensor, outputs: Tensor | None) -> int:
    """G, which a vector of offsets leaves open: (G + 1,) or, if C or the output says so, (G,)."""
    if offsets.ndim == 2:
        return offsets.shape[1]
    if outputs is not None and outputs.ndim == 3:
        return outputs.shape[0]
    return max(offsets.numel() - 1, 0)


def _check_groups(b: Tensor, scales_b: Tensor) -> tuple[int, int]:
    """G and N."""
    if b.ndim != 3 or scales_b.ndim != 3 or scales_b.shape[0] != b.shape[0]:
        raise InputError(
            f"b, scales_b: expected (G, N, K) and (G, ceil(N/128), ceil(K/128)), got {tuple(b.shape)} and "
            f"{tuple(scales_b.shape)}"
        )
    return b.shape[0], b.shape[1]


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{name}: expected torch.int32 or torch.int64, got {tensor.dtype}")


def _output(out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype | str, a: Tensor) -> Tensor:
    if out is None:
        return torch.zeros(shape, dtype=dtype_of("out_dtype", dtype, OUT_DTYPES), device=a.device)
    if out.shape != shape:
        raise InputError(f"out: expected shape {shape}, got {tuple(out.shape)}")
    return out
