"""Grouped products of tensors with memory, untraced: what `fp8gemm.products.grouped` and its operators compute."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.groups import check_grouped, check_k_grouped, check_masked
from fp8gemm.checks.memory import check_addresses, check_memory
from fp8gemm.driver import forking
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.kernels.dispatch import current_stream, launch_on
from fp8gemm.products import operands
from fp8gemm.products.calls import PLACES, UNREADABLE, Recent, identity, needs_gradient

_recent: Recent[tuple[settings.Settings, Recent[BoundLaunch]]] = Recent(256)
"""The latest calls that were checked: the settings that chose their kernels, and launches that may be repeated, by the
address of the output."""


class _Call:
    """One call on a GPU, which may be one that was made before: then nothing is checked, and it is launched.

    Args:
        tensors: all that it is given.
        options: what else tells calls apart.

    Attributes:
        is_checked: whether it was made before, if with another output of its own.
    """

    def __init__(self, *tensors: Tensor | None, options: tuple[object, ...]) -> None:
        first = tensors[0]
        assert first is not None
        self._key: tuple[object, ...] | None = None
        self._places: Recent[BoundLaunch] | None = None
        self.is_checked = False
        self._device_index = first.get_device()
        if self._device_index < 0 or needs_gradient(*tensors):
            return
        if forking.lost:
            forking.refuse()
        try:
            identities = tuple(None if tensor is None else identity(tensor) for tensor in tensors)
            key = identities, options, current_stream(self._device_index), self._device_index
            found = _recent.get(key)
        except UNREADABLE:
            return
        self._key = key
        if found is not None and found[0] is settings.current():
            self.is_checked, self._places = True, found[1]

    def repeat(self, out: Tensor) -> bool:
        """Launch it into ``out`` as it was launched before; False if it was not."""
        bound = None if self._places is None else self._places.get(out.data_ptr())
        if bound is None:
            return False
        launch_on(self._device_index, bound)
        return True

    def keep(self, out: Tensor, bound: BoundLaunch | None) -> None:
        """It is checked; and what `repeat` is to launch into ``out``, if anything."""
        if self._key is None or settings.current().check_groups:
            return
        if self._places is None:
            self._places = Recent(PLACES)
            _recent.keep(self._key, (settings.current(), self._places))
        if bound is not None:
            self._places.keep(out.data_ptr(), bound)


def multiply_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    indices: Tensor | None,
    offsets: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype,
    expected_m: int | None,
    batch_invariant: bool | None,
) -> Tensor:
    """`fp8gemm.gemm_grouped` from its checks on."""
    options, given = (out_dtype, expected_m, batch_invariant), out
    call = _Call(a, scales_a, b, scales_b, indices, offsets, out, options=options)
    if not call.is_checked:
        _check_grouped(a, scales_a, b, scales_b, indices, offsets, out, out_dtype, expected_m)
    m, (groups, n) = a.shape[0], b.shape[:2]
    if out is None:
        out = torch.empty((m, n), dtype=out_dtype, device=a.device)
    if call.repeat(out):
        return out
    if operands.uses_reference(a):
        from fp8gemm.reference import gemm_grouped_reference  # here, because products on a GPU do without

        return gemm_grouped_reference(
            a, scales_a, b, scales_b, indices=indices, offsets=offsets, out=out, out_dtype=out_dtype
        )
    if not m:
        return out
    from fp8gemm.products.grouped_launch import find_ranges, launch_contiguous

    if indices is not None:
        call.keep(out, None)
        offsets = find_ranges(indices, b)
        call = _Call(a, scales_a, b, scales_b, None, offsets, given, options=options)
        if call.repeat(out):
            return out
    assert offsets is not None
    rows_of_group = max(-(-m // groups), 1) if expected_m is None else expected_m
    invariant = _invariant(batch_invariant)
    bound = launch_contiguous(a, scales_a, b, scales_b, offsets, out, rows_of_group, invariant)
    call.keep(out, bound)
    return out


def _check_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    indices: Tensor | None,
    offsets: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype,
    expected_m: int | None,
) -> None:
    check_grouped(a, scales_a, b, scales_b, indices, offsets, out, out_dtype, expected_m)
    inputs = {"a": a, "scales_a": scales_a, "b": b, "scales_b": scales_b, "indices": indices, "offsets": offsets}
    check_addresses(out=out, **inputs)
    if out is not None:
        check_memory(out, None, **inputs)
    if settings.current().check_groups:
        from fp8gemm.checks.group_values import check_rows

        check_rows(a.shape[0], b.shape[0], indices, offsets)


def multiply_masked(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    out: Tensor | None,
    out_dtype: torch.dtype,
    expected_m: int | None,
    batch_invariant: bool | None,
) -> Tensor:
    """`fp8gemm.gemm_masked` from its checks on."""
    options = out_dtype, expected_m, batch_invariant
    call = _Call(a, scales_a, b, scales_b, counts, out, options=options)
    if not call.is_checked:
        _check_masked(a, scales_a, b, scales_b, counts, out, out_dtype, expected_m)
    groups, max_m, n = *a.shape[:2], b.shape[1]
    if out is None:
        out = torch.empty((groups, max_m, n), dtype=out_dtype, device=a.device)
    if call.repeat(out):
        return out
    if operands.uses_reference(a):
        from fp8gemm.reference import gemm_masked_reference

        return gemm_masked_reference(a, scales_a, b, scales_b, counts, out=out, out_dtype=out_dtype)
    if max_m:
        from fp8gemm.products.grouped_launch import launch_masked

        rows_of_group = max_m if expected_m is None else expected_m
        invariant = _invariant(batch_invariant)
        bound = launch_masked(a, scales_a, b, scales_b, counts, out, rows_of_group, invariant)
        call.keep(out, bound)
    return out


def _check_masked(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    counts: Tensor,
    out: Tensor | None,
    out_dtype: torch.dtype,
    expected_m: int | None,
) -> None:
    check_masked(a, scales_a, b, scales_b, counts, out, out_dtype, expected_m)
    inputs = {"a": a, "scales_a": scales_a, "b": b, "scales_b": scales_b, "counts": counts}
    check_addresses(out=out, **inputs)
    if out is not None:
        check_memory(out, None, **inputs)
    if settings.current().check_groups:
        from fp8gemm.checks.group_values import check_counts

        check_counts(a.shape[1], counts)


def multiply_k_grouped(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    offsets: Tensor,
    c: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """`fp8gemm.gemm_k_grouped` from its checks on."""
    call = _Call(a, scales_a, b, scales_b, offsets, c, out, options=())
    is_launch_alone = out is not None and (c is None or c is out)  # nothing is made or copied for it
    if out is not None and is_launch_alone and call.repeat(out):
        return out
    shape = check_k_grouped(a, scales_a, b, scales_b, offsets, c, out)
    inputs = {"a": a, "scales_a": scales_a, "b": b, "scales_b": scales_b, "offsets": offsets}
    check_addresses(c=c, out=out, **inputs)
    if out is not None:
        check_memory(out, c, **inputs)
    if settings.current().check_groups:
        from fp8gemm.checks.group_values import check_columns

        check_columns(a.shape[1], shape[0], offsets)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=a.device)
    if operands.uses_reference(a):
        from fp8gemm.reference import gemm_k_grouped_reference

        return gemm_k_grouped_reference(a, scales_a, b, scales_b, offsets, c=c, out=out)
    from fp8gemm.products.grouped_launch import launch_k_grouped

    if c is not None and c is not out:
        out.copy_(c)  # where it is the same memory, nothing changes
    bound = launch_k_grouped(a, scales_a, b, scales_b, offsets, out, accumulate=c is not None)
    if is_launch_alone:
        call.keep(out, bound)
    return out


def _invariant(batch_invariant: bool | None) -> bool:
    return settings.current().batch_invariant if batch_invariant is None else batch_invariant
