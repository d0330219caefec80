"""Grouped products of tensors with memory, untraced: check, find the kernel, launch; what their operators compute."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.dtypes import OUTPUTS, dtype_of, output_type
from fp8gemm.checks.groups import check_grouped, check_k_grouped, check_masked
from fp8gemm.checks.memory import check_addresses, check_memory
from fp8gemm.driver.current import current_stream, on_device
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.kernels.loaded import device_chip, group_ranges_for, kernel_for
from fp8gemm.products import operands as layout
from fp8gemm.products.calls import Key, RepeatedCalls, key_of_call
from fp8gemm.tuning.grouped_problem import NOMINAL_K, GroupedProblem
from fp8gemm.tuning.problem import Grouping

_grouped, _masked, _k_grouped, _searches = RepeatedCalls(256), RepeatedCalls(256), RepeatedCalls(256), RepeatedCalls(64)
_problem = lru_cache(maxsize=4096)(GroupedProblem)
_accumulating = lru_cache(maxsize=4096)(GroupedProblem.accumulating)


Options = tuple[torch.dtype | str, int | None, bool | None]
"""out_dtype, expected_m, batch_invariant."""
RowsOperands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
"""a, scales_a, b, scales_b, indices, offsets, out."""
MaskedOperands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""a, scales_a, b, scales_b, counts, out."""
ColumnsOperands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""a, scales_a, b, scales_b, offsets, c, out."""


def multiply_grouped(operands: RowsOperands, options: Options, *, again: bool = False) -> Tensor:
    """`fp8gemm.gemm_grouped` from its checks on, or `fp8gemm.products.grouped.gemm_grouped_again`."""
    a, scales_a, b, scales_b, indices, offsets, out = operands
    out_dtype, expected_m, batch_invariant = options
    key = _key((*options, type(expected_m), again), *operands)
    done, made = _grouped.repeat(key, out)
    if done is not None:
        return done
    if not isinstance(out_dtype, torch.dtype):
        out_dtype = dtype_of("out_dtype", out_dtype, OUTPUTS)
    if not _grouped.knows(key):
        check_grouped(*operands, out_dtype, expected_m)
        _check_memory(out, a=a, scales_a=scales_a, b=b, scales_b=scales_b, indices=indices, offsets=offsets)
        if settings.current().check_groups:
            from fp8gemm.checks.group_values import check_rows

            check_rows(a.shape[0], b.shape[0], indices, offsets)
        if indices is not None:
            _grouped.note(key)
    m, (groups, n, k) = a.shape[0], b.shape
    by_reference = layout.uses_reference(a)
    if indices is not None and m and not by_reference:
        return multiply_grouped((a, scales_a, b, scales_b, None, _find_ranges(indices, b), out), options)
    given = out is not None
    if out is None:
        out = torch.empty((m, n), dtype=out_dtype, device=a.device) if made is None else made
    if by_reference:
        from fp8gemm.reference import gemm_grouped_reference  # here, because products on a GPU do without

        return gemm_grouped_reference(
            a, scales_a, b, scales_b, indices=indices, offsets=offsets, out=out, out_dtype=out_dtype
        )
    if not m or offsets is None:
        return out
    rows = max(-(-m // groups), 1) if expected_m is None else expected_m
    kernel = _kernel(Grouping.CONTIGUOUS, groups, rows, n, k, out, batch_invariant=batch_invariant)
    ranges = _int32(offsets)
    begins, ends = _addresses(ranges, groups)
    read_a = layout.tma_scales(scales_a) if kernel.reads_scales_by_tma else scales_a
    of_all = GroupedOperands(
        a, read_a, b.flatten(0, 1), scales_b, out, begins, ends, m, m * n * k, again and ranges is offsets
    )
    bound = _launch(kernel, of_all)
    if read_a is scales_a and ranges is offsets:
        _grouped.keep(key, out, bound, given=given)
    return out


def multiply_masked(operands: MaskedOperands, options: Options, *, again: bool = False) -> Tensor:
    """`fp8gemm.gemm_masked` from its checks on, or `fp8gemm.products.grouped.gemm_masked_again`."""
    a, scales_a, b, scales_b, counts, out = operands
    out_dtype, expected_m, batch_invariant = options
    key = _key((*options, type(expected_m), again), *operands)
    done, made = _masked.repeat(key, out)
    if done is not None:
        return done
    if not isinstance(out_dtype, torch.dtype):
        out_dtype = dtype_of("out_dtype", out_dtype, OUTPUTS)
    if not _masked.knows(key):
        check_masked(*operands, out_dtype, expected_m)
        _check_memory(out, a=a, scales_a=scales_a, b=b, scales_b=scales_b, counts=counts)
        if settings.current().check_groups:
            from fp8gemm.checks.group_values import check_counts

            check_counts(a.shape[1], counts)
    (groups, n, k), max_m, given = b.shape, a.shape[1], out is not None
    if out is None:
        out = torch.empty((groups, max_m, n), dtype=out_dtype, device=a.device) if made is None else made
    if layout.uses_reference(a):
        from fp8gemm.reference import gemm_masked_reference

        return gemm_masked_reference(a, scales_a, b, scales_b, counts, out=out, out_dtype=out_dtype)
    if not max_m:
        return out
    rows = min(max_m if expected_m is None else expected_m, max_m)
    rows_of_out = layout.rows_of_groups(out)
    kernel = _kernel(Grouping.MASKED, groups, rows, n, k, rows_of_out, batch_invariant=batch_invariant)
    read_counts = _int32(counts)
    read_a = layout.tma_scales_of_groups(scales_a) if kernel.reads_scales_by_tma else scales_a
    of_all = GroupedOperands(
        layout.rows_of_groups(a),
        read_a,
        b.flatten(0, 1),
        scales_b,
        rows_of_out,
        0,
        read_counts.data_ptr(),
        max_m,
        groups * rows * n * k,
        again and read_counts is counts,
    )
    bound = _launch(kernel, of_all)
    if read_a.data_ptr() == scales_a.data_ptr() and read_counts is counts:
        _masked.keep(key, out, bound, given=given)
    return out


def multiply_k_grouped(operands: ColumnsOperands) -> Tensor:
    """`fp8gemm.gemm_k_grouped` from its checks on."""
    a, scales_a, b, scales_b, offsets, c, out = operands
    key = _key((), *operands, is_repeatable=c is None or c is out)  # else C is copied first
    done, made = _k_grouped.repeat(key, out)
    if done is not None:
        return done
    shape = check_k_grouped(*operands)
    _check_memory(out, c, a=a, scales_a=scales_a, b=b, scales_b=scales_b, offsets=offsets)
    if settings.current().check_groups:
        from fp8gemm.checks.group_values import check_columns

        check_columns(a.shape[1], shape[0], offsets)
    given = out is not None
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=a.device) if made is None else made
    if layout.uses_reference(a):
        from fp8gemm.reference import gemm_k_grouped_reference

        return gemm_k_grouped_reference(a, scales_a, b, scales_b, offsets, c=c, out=out)
    if c is not None and c is not out:
        out.copy_(c)  # where it is the same memory, nothing changes
    groups, m, n = shape
    rows_of_out = layout.rows_of_groups(out)
    kernel = _kernel(
        Grouping.COLUMNS, groups, m, n, NOMINAL_K, rows_of_out, accumulates=c is not None, batch_invariant=False
    )
    ranges = _int32(offsets)
    begins, ends = _addresses(ranges, groups)
    read_a, read_b = layout.tma_scales(scales_a), layout.tma_scales(scales_b)
    of_all = GroupedOperands(a, read_a, b, read_b, rows_of_out, begins, ends, m, m * n * a.shape[1])
    bound = _launch(kernel, of_all)
    if read_a is scales_a and read_b is scales_b and ranges is offsets:
        _k_grouped.keep(key, out, bound, given=given)
    return out


def _key(options: tuple[object, ...], *tensors: Tensor | None, is_repeatable: bool = True) -> Key | None:
    """`key_of_call`; None where more is to be done than a launch, or groups are to be looked at in every call."""
    key = key_of_call(options, *tensors)  # type: ignore[arg-type]  # also to refuse what cannot use a GPU
    return key if is_repeatable and not settings.current().check_groups else None


def _check_memory(out: Tensor | None, c: Tensor | None = None, **inputs: Tensor | None) -> None:
    check_addresses(c=c, out=out, **inputs)
    if out is not None:
        check_memory(out, c, **inputs)


def _kernel(
    grouping: Grouping,
    groups: int,
    m: int,
    n: int,
    k: int,
    rows_of_out: Tensor,
    *,
    accumulates: bool = False,
    batch_invariant: bool | None,
) -> GroupedKernel:
    """The kernel for an output whose rows are (rows, N); C, if there is one, is in it already."""
    if batch_invariant is None:
        batch_invariant = settings.current().batch_invariant
    store = layout.store_kind(rows_of_out, rows_of_out if accumulates else None)
    output = output_type(rows_of_out.dtype)
    problem = _problem(grouping, groups, m, n, k, output, store, batch_invariant=batch_invariant)
    if accumulates:
        problem = _accumulating(problem)
    index = rows_of_out.device.index
    return kernel_for(problem, device_chip(index), index)


def _launch(kernel: GroupedKernel, of_all: GroupedOperands) -> BoundLaunch:
    index = of_all.a.device.index
    with on_device(index):
        bound = kernel.bind(of_all, current_stream(index))
        bound()
    return bound


def _find_ranges(indices: Tensor, b: Tensor) -> Tensor:
    """(2, G) int32: first rows, and the rows behind the last, of checked ``indices`` (M,), M > 0."""
    groups, n, k = b.shape
    ranges = torch.zeros((2, groups), dtype=torch.int32, device=indices.device)
    key = key_of_call((), indices, ranges)
    if _searches.repeat(key, ranges)[0] is not None:
        return ranges
    index = indices.device.index
    kernel = group_ranges_for(GroupedProblem(Grouping.CONTIGUOUS, groups, 1, n, k), index)
    read = _int32(indices)
    with on_device(index):
        bound = kernel.bind(read, ranges, stream=current_stream(index))
        bound()
    if read is indices:
        _searches.keep(key, ranges, bound, given=True)
    return ranges


def _int32(values: Tensor) -> Tensor:
    if values.dtype is torch.int64:
        values = values.clamp(-1, 2**31 - 1)  # either of which is out of range, as what it stands for
    return values.to(torch.int32)


def _addresses(ranges: Tensor, groups: int) -> tuple[int, int]:
    """Where first rows are, and the rows behind the last, of a form that `check_offsets` knows; 0 for none."""
    first = ranges.data_ptr()
    if ranges.dim() == 2:
        return first, first + 4 * groups
    return (0, first) if ranges.shape[0] == groups else (first, first + 4)
