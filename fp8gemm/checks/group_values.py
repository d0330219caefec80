"""Checks of what lies in device memory: sizes of groups. They wait for the GPU, so that only a setting asks for them.

Kernels take any values: they clamp what is out of range. Who wants to know of it sets ``FP8GEMM_CHECK_GROUPS``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.sizes import SCALE_BLOCK


def check_rows(m: int, groups: int, indices: Tensor | None, offsets: Tensor | None) -> None:
    """Groups of rows are in range, in one run each, and do not overlap.

    Raises:
        InputError: they are not; the first place is named.
    """
    if offsets is not None:
        _check_ranges(*_ranges(offsets, groups), m, step=1)
        return
    assert indices is not None
    found = indices.tolist()
    ended: set[int] = set()
    last = -1
    for row, group in enumerate(found):
        if not -1 <= group < groups:
            raise InputError(f"indices: expected -1 to {groups - 1} = G - 1, got {group} for row {row}")
        if group != last and group in ended:
            raise InputError(
                f"indices: expected the rows of a group to be neighbours, got more of {group} at row {row}"
            )
        if group != last:
            ended.add(last)
            ended.discard(-1)  # rows of no group may lie anywhere
            last = group


def check_counts(max_m: int, counts: Tensor) -> None:
    """Counts are 0 to ``max_m``.

    Raises:
        InputError: one is not; the first is named.
    """
    for group, count in enumerate(counts.tolist()):
        if not 0 <= count <= max_m:
            raise InputError(f"counts: expected 0 to max_m = {max_m}, got {count} for group {group}")


def check_columns(k: int, groups: int, offsets: Tensor) -> None:
    """Groups of columns are in range, begin and end at multiples of 128, and do not overlap.

    Raises:
        InputError: they are not; the first place is named.
    """
    _check_ranges(*_ranges(offsets, groups), k, step=SCALE_BLOCK)


def _ranges(offsets: Tensor, groups: int) -> tuple[list[int], list[int]]:
    if offsets.dim() == 2:
        begins, ends = offsets.tolist()
        return begins, ends
    if offsets.shape[0] == groups:
        offsets = torch.cat((offsets.new_zeros(1), offsets))
    values = offsets.tolist()
    return values[:-1], values[1:]


def _check_ranges(begins: list[int], ends: list[int], size: int, *, step: int) -> None:
    for group, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if not 0 <= begin <= end <= size or begin % step or end % step:
            raise InputError(
                f"offsets: expected 0 <= begin <= end <= {size}{f', multiples of {step},' if step > 1 else ''} got "
                f"{begin} to {end} for group {group}"
            )
    taken = sorted(
        (begin, end, group) for group, (begin, end) in enumerate(zip(begins, ends, strict=True)) if begin < end
    )
    for (_, end, group), (begin, _, other) in zip(taken, taken[1:], strict=False):
        if begin < end:
            raise InputError(f"offsets: expected groups that do not overlap, got {group} and {other} at {begin}")
