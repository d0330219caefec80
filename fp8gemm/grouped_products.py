"""Grouped products of tensors with memory, traced by nobody: what `fp8gemm.grouped` and its operators compute."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm import grouped_operands as checks
from fp8gemm import operands, settings
from fp8gemm.dispatch import current_stream, launch_on
from fp8gemm.driver import forking
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.errors import InputError
from fp8gemm.recent import Recent, identity, needs_gradient

_recent: Recent[tuple[settings.Settings, BoundLaunch | None]] = Recent(256)
"""The latest calls that were checked: the settings that chose their kernels, and launches that may be repeated."""


class _Call:
    """One call on a GPU, which may be one that was made before: then nothing is checked, and it is launched.

    Args:
        tensors: all that it is given.
        options: what else tells calls apart.

    Attributes:
        is_checked: whether it was made before, if with another launch.
    """

    def __init__(self, *tensors: Tensor | None, options: tuple[object, ...]) -> None:
        first = tensors[0]
        assert first is not None
        self._key: tuple[object, ...] | None = None
        self._bound: BoundLaunch | None = None
        self.is_checked = False
        self._device_index = first.get_device()
        if self._device_index < 0 or needs_gradient(*tensors):
            return
        if forking.lost:
            forking.refuse()
        identities = tuple(None if tensor is None else identity(tensor) for tensor in tensors)
        self._key = identities, options, current_stream(self._device_index), self._device_index
        found = _recent.get(self._key)
        if found is not None and found[0] is settings.current():
            self.is_checked, self._bound = True, found[1]

    def repeat(self) -> bool:
        """Launch it as it was launched before; False if it was not."""
        if self._bound is None:
            return False
        launch_on(self._device_index, self._bound)
        return True

    def keep(self, bound: BoundLaunch | None) -> None:
        """It is checked; and what `repeat` is to launch, if anything."""
        if self._key is not None and not settings.current().check_groups:
            _recent.keep(self._key, (settings.current(), bound))


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
    static_weights: bool,
) -> Tensor:
    """`fp8gemm.gemm_grouped` from its checks on."""
    if out is None and a.dim() == 2 and b.dim() == 3:
        out = torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype, device=a.device)
    options = out_dtype, expected_m, batch_invariant, static_weights
    call = _Call(a, scales_a, b, scales_b, indices, offsets, out, options=options)
    if out is not None and call.repeat():
        return out
    if not call.is_checked:
        _check_grouped(a, scales_a, b, scales_b, indices, offsets, out, out_dtype)
    assert out is not None  # both have the dimensions that it is made for
    m, groups = a.shape[0], b.shape[0]
    rows_of_group = checks.check_expected(expected_m, -(-m // groups))
    if operands.uses_reference(a):
        from fp8gemm.reference import gemm_grouped_reference  # here, because products on a GPU do without

        return gemm_grouped_reference(
            a, scales_a, b, scales_b, indices=indices, offsets=offsets, out=out, out_dtype=out_dtype
        )
    if not m:
        return out
    from fp8gemm.grouped_launch import find_ranges, launch_contiguous

    if indices is not None:
        call.keep(None)
        offsets = find_ranges(indices, b)
        call = _Call(a, scales_a, b, scales_b, None, offsets, out, options=options)
        if call.repeat():
            return out
    assert offsets is not None
    invariant = _invariant(batch_invariant)
    call.keep(launch_contiguous(a, scales_a, b, scales_b, offsets, out, rows_of_group, invariant, static_weights))
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
) -> None:
    operands.output_type(out_dtype)
    groups, n, _ = checks.check_weights(b, scales_b)
    operands.check_a(a, scales_a, b[0])
    m = a.shape[0]
    if (indices is None) == (offsets is None):
        raise InputError(f"expected either indices or offsets, got {'neither' if indices is None else 'both'}")
    if indices is not None:
        checks.check_indices(indices, m, b)
    elif offsets is not None:
        checks.check_offsets(offsets, b, groups)
    if out is not None:
        checks.check_output("out", out, (m, n), out_dtype, b)
        inputs = {"a": a, "scales_a": scales_a, "b": b, "scales_b": scales_b, "indices": indices, "offsets": offsets}
        operands.check_memory(out, None, **inputs)
    if settings.current().check_groups:
        from fp8gemm.group_checks import check_rows

        check_rows(m, groups, indices, offsets)


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
    static_weights: bool,
) -> Tensor:
    """`fp8gemm.gemm_masked` from its checks on."""
    if out is None and a.dim() == 3 and b.dim() == 3:
        out = torch.empty((a.shape[0], a.shape[1], b.shape[1]), dtype=out_dtype, device=a.device)
    options = out_dtype, expected_m, batch_invariant, static_weights
    call = _Call(a, scales_a, b, scales_b, counts, out, options=options)
    if out is not None and call.repeat():
        return out
    operands.output_type(out_dtype)
    groups, n, _ = checks.check_weights(b, scales_b)
    max_m = checks.check_masked(a, scales_a, b)
    checks.check_counts(counts, b)
    rows_of_group = checks.check_expected(expected_m, max_m)
    assert out is not None  # both have the dimensions that it is made for
    rows = checks.check_output("out", out, (groups, max_m, n), out_dtype, b)
    operands.check_memory(rows, None, a=a, scales_a=scales_a, b=b, scales_b=scales_b, counts=counts)
    if settings.current().check_groups:
        from fp8gemm.group_checks import check_counts

        check_counts(max_m, counts)
    if operands.uses_reference(a):
        from fp8gemm.reference import gemm_masked_reference

        return gemm_masked_reference(a, scales_a, b, scales_b, counts, out=out, out_dtype=out_dtype)
    if max_m:
        from fp8gemm.grouped_launch import launch_masked

        invariant = _invariant(batch_invariant)
        call.keep(launch_masked(a, scales_a, b, scales_b, counts, out, rows_of_group, invariant, static_weights))
    return out


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
    if out is not None and is_launch_alone and call.repeat():
        return out
    checks.check_k_grouped(a, scales_a, b, scales_b)
    of_output = next((tensor.shape[0] for tensor in (c, out) if tensor is not None and tensor.dim() == 3), None)
    groups = checks.check_offsets(offsets, b, of_output)
    shape = groups, a.shape[0], b.shape[0]
    if c is not None:
        rows_of_c = checks.check_output("c", c, shape, torch.float32, b)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=a.device)
    else:
        rows = checks.check_output("out", out, shape, torch.float32, b)
        terms = {"a": a, "scales_a": scales_a, "b": b, "scales_b": scales_b, "offsets": offsets}
        operands.check_memory(rows, None if c is None else rows_of_c, **terms)
    if settings.current().check_groups:
        from fp8gemm.group_checks import check_columns

        check_columns(a.shape[1], groups, offsets)
    if operands.uses_reference(a):
        from fp8gemm.reference import gemm_k_grouped_reference

        return gemm_k_grouped_reference(a, scales_a, b, scales_b, offsets, c=c, out=out)
    from fp8gemm.grouped_launch import launch_k_grouped

    if c is not None and c is not out:
        out.copy_(c)  # where it is the same memory, nothing changes
    bound = launch_k_grouped(a, scales_a, b, scales_b, offsets, out, accumulate=c is not None)
    if is_launch_alone:
        call.keep(bound)
    return out


def _invariant(batch_invariant: bool | None) -> bool:
    return settings.current().batch_invariant if batch_invariant is None else batch_invariant
