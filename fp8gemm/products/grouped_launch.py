"""From checked operands of a grouped product to its launch on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.dtypes import output_type
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.errors import CacheMissError
from fp8gemm.kernels import nearest
from fp8gemm.kernels.dispatch import current_stream, device_chip, launch_on, on_device
from fp8gemm.kernels.group_ranges import GroupRangesKernel
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands, kernel_request
from fp8gemm.kernels.hints import naming_the_warmup, warmup_of_grouped
from fp8gemm.kernels.recording import record_problem
from fp8gemm.products import operands
from fp8gemm.products.calls import Recent, identity
from fp8gemm.scales import empty_mn_major_groups, mn_major_pitch
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_problem import NOMINAL_K, GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import FEW_ROWS, Addend, Grouping
from fp8gemm.tuning.select import Config

_KernelKey = tuple[GroupedProblem, Config, int, Chip, bool]
_kernels: dict[_KernelKey, GroupedKernel] = {}
_range_kernels: dict[tuple[int, bool], GroupRangesKernel] = {}
_recent_ranges: Recent[tuple[settings.Settings, BoundLaunch]] = Recent(64)
"""The latest calls' searches for ranges, and the settings that they were made with."""


def launch_contiguous(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    offsets: Tensor,
    out: Tensor,
    expected_m: int,
    batch_invariant: bool,
) -> BoundLaunch | None:
    """`fp8gemm.gemm_grouped` for M > 0 and offsets of any form.

    Returns:
        The launch, which may be repeated as long as operands lie where they are; None if some had to be copied for it.
    """
    groups, n, k = b.shape
    problem = _problem(
        Grouping.CONTIGUOUS,
        groups,
        expected_m,
        n,
        k,
        output_type(out.dtype),
        operands.store_kind(out),
        Addend.NONE,
        batch_invariant,
    )
    index = a.device.index
    kernel = kernel_for(problem, device_chip(index), index)
    ranges = _int32(offsets)
    begins, ends = _addresses(ranges, groups)
    read_a = operands.tma_scales(scales_a) if kernel.reads_scales_by_tma else scales_a
    bound = _launch(
        kernel, GroupedOperands(a, read_a, b.flatten(0, 1), scales_b, out, begins, ends, a.shape[0], a.shape[0] * n * k)
    )
    return bound if read_a is scales_a and ranges is offsets else None


def launch_masked(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    out: Tensor,
    expected_m: int,
    batch_invariant: bool,
) -> BoundLaunch | None:
    """`fp8gemm.gemm_masked` for max_m > 0; the result is as that of `launch_contiguous`."""
    groups, n, k = b.shape
    max_m = a.shape[1]
    rows_of_out = out.as_strided((groups * max_m, n), (out.stride(1), out.stride(2)))
    problem = _problem(
        Grouping.MASKED,
        groups,
        min(expected_m, max_m),
        n,
        k,
        output_type(out.dtype),
        operands.store_kind(rows_of_out),
        Addend.NONE,
        batch_invariant,
    )
    index = a.device.index
    kernel = kernel_for(problem, device_chip(index), index)
    read_counts = _int32(counts)
    read_a = _tma_scales_of_groups(scales_a) if kernel.reads_scales_by_tma else scales_a
    rows_of_a = a.as_strided((groups * max_m, k), (a.stride(1), 1))
    products = groups * problem.m * n * k
    of_all = GroupedOperands(
        rows_of_a, read_a, b.flatten(0, 1), scales_b, rows_of_out, 0, read_counts.data_ptr(), max_m, products
    )
    bound = _launch(kernel, of_all)
    return bound if read_a.data_ptr() == scales_a.data_ptr() and read_counts is counts else None


def launch_k_grouped(
    a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, offsets: Tensor, out: Tensor, *, accumulate: bool
) -> BoundLaunch | None:
    """`fp8gemm.gemm_k_grouped`; C is in ``out`` already. The result is as that of `launch_contiguous`."""
    groups, m, n = out.shape
    rows_of_out = out.as_strided((groups * m, n), (out.stride(1), out.stride(2)))
    problem = _problem(
        Grouping.COLUMNS,
        groups,
        m,
        n,
        NOMINAL_K,
        output_type(out.dtype),
        operands.store_kind(rows_of_out, rows_of_out if accumulate else None),
        Addend.FLOAT32 if accumulate else Addend.NONE,
    )
    index = a.device.index
    kernel = kernel_for(problem, device_chip(index), index)
    ranges = _int32(offsets)
    begins, ends = _addresses(ranges, groups)
    read_a, read_b = operands.tma_scales(scales_a), operands.tma_scales(scales_b)
    bound = _launch(kernel, GroupedOperands(a, read_a, b, read_b, rows_of_out, begins, ends, m, m * n * a.shape[1]))
    return bound if read_a is scales_a and read_b is scales_b and ranges is offsets else None


def kernel_for(problem: GroupedProblem, chip: Chip, device_index: int) -> GroupedKernel:
    """The loaded kernel of the chosen config or, under the policy ``nearest``, the best of those that are ready."""
    in_force = settings.current()
    if in_force.record is not None:
        record_problem(in_force.record, problem)
    key = _best(problem, chip, device_index, in_force.pdl)
    found = _kernels.get(key)
    if found is not None:
        return found
    ready = _nearest_config(problem, chip, device_index) if in_force.jit == "nearest" else None
    if ready is not None:
        key = _key(problem, ready, device_index, chip, in_force.pdl)
        found = _kernels.get(key)
    if found is None:
        try:
            with naming_the_warmup(lambda: warmup_of_grouped(problem, chip)):
                kernel = GroupedKernel(
                    key[0],
                    key[1],
                    device_index=device_index,
                    num_sms=chip.num_sms,
                    limited=chip.limited,
                    allow_compile=in_force.jit == "compile",
                    programmatic=in_force.pdl,
                )
        except CacheMissError:
            if ready is not None:
                nearest.forget()
            raise
        found = _kernels.setdefault(key, kernel)
    return found


def _nearest_config(problem: GroupedProblem, chip: Chip, device_index: int) -> Config | None:
    return nearest.nearest_config(
        problem,
        chip,
        device_index,
        candidates=lambda: _candidates(problem, chip),
        request_of=lambda config: kernel_request(problem, config),
    )


def _candidates(problem: GroupedProblem, chip: Chip) -> Iterator[Config]:
    """Configs that serve a problem, best first. Any is right for groups of any size: those of few rows come last."""
    yield from ranked_grouped(problem, chip)
    for m in FEW_ROWS:
        yield from ranked_grouped(replace(problem, m=m), chip)


_problem = lru_cache(maxsize=4096)(GroupedProblem)


@lru_cache(maxsize=4096)
def _best(problem: GroupedProblem, chip: Chip, device_index: int, programmatic: bool) -> _KernelKey:
    return _key(problem, ranked_grouped(problem, chip)[0], device_index, chip, programmatic)


def _key(problem: GroupedProblem, config: Config, device_index: int, chip: Chip, programmatic: bool) -> _KernelKey:
    """All that tells loaded kernels apart: not how many rows a group has, nor why the config was chosen."""
    of_kernel = replace(problem, m=1, batch_invariant=False)
    return of_kernel, config, device_index, chip, programmatic


def _launch(kernel: GroupedKernel, of_all: GroupedOperands) -> BoundLaunch:
    index = of_all.a.device.index
    with on_device(index):
        bound = kernel.bind(of_all, current_stream(index))
        bound()
    return bound


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


def find_ranges(indices: Tensor, b: Tensor) -> Tensor:
    """(2, G) int32: first rows, and the rows behind the last, of checked ``indices`` (M,), M > 0."""
    groups, n, k = b.shape
    index = indices.device.index
    in_force = settings.current()
    ranges = torch.zeros((2, groups), dtype=torch.int32, device=indices.device)
    stream = current_stream(index)
    key = identity(indices), ranges.data_ptr(), groups, stream, index
    found = _recent_ranges.get(key)
    if found is not None and found[0] is in_force:
        launch_on(index, found[1])
        return ranges
    kernel = _range_kernels.get((index, in_force.pdl))
    if kernel is None:
        allowed = in_force.jit == "compile"
        problem = GroupedProblem(Grouping.CONTIGUOUS, groups, 1, n, k)
        with naming_the_warmup(lambda: warmup_of_grouped(problem, device_chip(index))):
            loaded = GroupRangesKernel(device_index=index, allow_compile=allowed, programmatic=in_force.pdl)
        kernel = _range_kernels.setdefault((index, in_force.pdl), loaded)
    read = _int32(indices)
    with on_device(index):
        bound = kernel.bind(read, ranges, stream=stream)
        bound()
    if read is indices:
        _recent_ranges.keep(key, (in_force, bound))
    return ranges


def _tma_scales_of_groups(scales: Tensor) -> Tensor:
    """Scales (G, max_m, K blocks) as TMA can read them: each group's MN-major, packed. A copy if they are not so."""
    groups, rows, blocks = scales.shape
    pitch = scales.stride(2) if blocks > 1 else mn_major_pitch(rows)
    in_columns = (rows == 1 or scales.stride(1) == 1) and pitch % 4 == 0 and pitch >= rows
    if in_columns and (groups == 1 or scales.stride(0) == blocks * pitch) and scales.data_ptr() % 16 == 0:
        return scales.as_strided((groups, rows, blocks), (blocks * pitch, 1, pitch))
    return empty_mn_major_groups(groups, rows, blocks, device=scales.device).copy_(scales)
