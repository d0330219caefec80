"""Calls that were made before: these are launched again without a second check.

A call is known by its key, which is all that its checks look at: types, addresses, shapes, strides and dtypes of the
operands, what else tells calls apart, the GPU and the stream. Of a call that makes its output, launches are kept by
the address of that: an allocator gives the same few in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, is_grad_enabled

from fp8gemm import settings
from fp8gemm.driver import forking
from fp8gemm.driver.current import current_device, current_stream, launch_on
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.products.watched import is_watched

_Value = TypeVar("_Value")
Key = tuple[Any, ...]

PLACES = 8
"""Addresses of new outputs that launches of one call are kept for."""

UNREADABLE = (AttributeError, RuntimeError, TypeError)
"""What reading an operand raises that a check refuses: None, a sparse tensor, one without memory."""


def _gpu_of(first: Tensor) -> int:
    """The GPU that a call may be repeated on; -1 if it may not, because it is watched or on none.

    Raises:
        UnsupportedDeviceError: it is on a GPU, and this process was forked from one that had started CUDA.
    """
    try:
        device_index = first.get_device()
        if device_index < 0 or is_watched():
            return -1
    except UNREADABLE:
        return -1
    if forking.lost:
        forking.refuse()
    return device_index


def key_of_input(options: Hashable, x: Tensor) -> Key | None:
    """`key_of_call` of one operand."""
    device_index = _gpu_of(x)
    if device_index < 0 or (x.requires_grad and is_grad_enabled()):
        return None
    try:
        strides = x.is_contiguous() or x.stride()
        return device_index, options, current_stream(device_index), type(x), x.data_ptr(), x.shape, strides, x.dtype
    except UNREADABLE:
        return None


def key_of_call(
    options: Hashable,
    first: Tensor,
    second: Tensor,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
    fifth: Tensor | None = None,
    sixth: Tensor | None = None,
    seventh: Tensor | None = None,
) -> Key | None:
    """Equal for two calls that no check can tell apart, while operands lie where they are.

    Args:
        options: what else tells calls apart.
        first, second, third, fourth, fifth, sixth, seventh: the operands, of whatever types; the first says where.

    Returns:
        None for a call that cannot be repeated: it is watched, on no GPU, an operand requires a gradient, or one is
        nothing that has memory, which checks refuse.

    Raises:
        UnsupportedDeviceError: it is on a GPU, and this process was forked from one that had started CUDA.
    """
    device_index = _gpu_of(first)
    if device_index < 0:
        return None
    # NOTE: one by one and as one expression, because a function or a loop for each tensor takes longer.
    try:
        # What gradients are wanted of may change with nothing else.
        if is_grad_enabled() and (
            first.requires_grad
            or second.requires_grad
            or (third is not None and third.requires_grad)
            or (fourth is not None and fourth.requires_grad)
            or (fifth is not None and fifth.requires_grad)
            or (sixth is not None and sixth.requires_grad)
            or (seventh is not None and seventh.requires_grad)
        ):
            return None
        # Whether a tensor is contiguous takes less than its strides, and says as much; row scales seldom are. What may
        # be a C is asked whether it is a view that negates, the imaginary part of a conjugate say.
        return (
            device_index, options, current_stream(device_index),
            type(first), first.data_ptr(), first.shape, first.is_contiguous() or first.stride(), first.dtype,
            type(second), second.data_ptr(), second.shape, second.stride(), second.dtype,
            None if third is None else (
                type(third), third.data_ptr(), third.shape, third.is_contiguous() or third.stride(), third.dtype,
                third.is_neg(),
            ),
            None if fourth is None else (
                type(fourth), fourth.data_ptr(), fourth.shape, fourth.is_contiguous() or fourth.stride(), fourth.dtype
            ),
            None if fifth is None else (
                type(fifth), fifth.data_ptr(), fifth.shape, fifth.is_contiguous() or fifth.stride(), fifth.dtype,
                fifth.is_neg(),
            ),
            None if sixth is None else (
                type(sixth), sixth.data_ptr(), sixth.shape, sixth.is_contiguous() or sixth.stride(), sixth.dtype,
                sixth.is_neg(),
            ),
            None if seventh is None else (
                type(seventh), seventh.data_ptr(), seventh.shape, seventh.is_contiguous() or seventh.stride(),
                seventh.dtype,
            ),
        )  # fmt: skip  # a line for each operand
    except UNREADABLE:
        return None


class Recent(Generic[_Value]):
    """A dictionary of the latest entries; threads may share it.

    Attributes:
        get: the value of a key, or None.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[Hashable, _Value] = {}
        self._lock = threading.Lock()
        self.get = self._values.get

    def keep(self, key: Hashable, value: _Value) -> None:
        """Enter a value; the oldest one makes room."""
        with self._lock:
            if len(self._values) >= self._size:
                del self._values[next(iter(self._values))]
            self._values[key] = value


class _Kept:
    """What a call launched; it is replaced, never changed.

    Attributes:
        settings: those that chose its kernel; None if they do not matter.
        device_index: where.
        bound: its launch, if it was given its output.
        made: shape, strides, dtype and device of an output of its own; None if it is only known to be right.
        places: launches by the address of a new output.
    """

    __slots__ = ("bound", "device_index", "made", "places", "settings")

    def __init__(
        self,
        settings: settings.Settings | None,
        device_index: int,
        bound: BoundLaunch | None,
        made: tuple[Any, ...] | None,
    ) -> None:
        self.settings, self.device_index, self.bound, self.made = settings, device_index, bound, made
        self.places: Recent[BoundLaunch] = Recent(PLACES)


class RepeatedCalls:
    """The latest calls of one function, and what to launch for each; threads may share it.

    Args:
        size: calls that are kept.
        by_settings: whether the settings in force choose the kernel.
    """

    def __init__(self, size: int, *, by_settings: bool = True) -> None:
        self._by_settings = by_settings
        self._kept: Recent[_Kept] = Recent(size)
        self._last: tuple[Key | None, _Kept | None] = (None, None)

    def repeat(self, key: Key | None, out: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Launch a call as it was launched before.

        Args:
            key: of the call; None for one that cannot be repeated.
            out: what it is given to write to.

        Returns:
            The output if it is being written, ``out`` or a new one; else None, and memory for a new output if there is
            some already.
        """
        kept = self._find(key)
        if kept is None:
            return None, None
        bound = kept.bound
        if out is None and kept.made is not None:
            shape, strides, dtype, device = kept.made
            out = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            bound = kept.places.get(out.data_ptr())
            if bound is None:
                return None, out
        if bound is None:
            return None, None
        if current_device() == kept.device_index:
            bound()
        else:
            launch_on(kept.device_index, bound)
        return out, None

    def knows(self, key: Key | None) -> bool:
        """Whether a call was made before, so that its operands need no second check."""
        return self._find(key) is not None

    def note(self, key: Key | None) -> None:
        """A call was checked, and is launched in another way than by `repeat`."""
        if key is not None:
            self._enter(key, None, None)

    def keep(self, key: Key | None, out: Tensor, bound: BoundLaunch, *, given: bool) -> None:
        """A call was checked, and launched.

        Args:
            key: of the call; None for one that cannot be repeated.
            out: its output.
            bound: its launch.
            given: whether the call brought its output.
        """
        if key is None:
            return
        kept = self._find(key)
        if kept is None or given:
            made = out.shape, out.stride(), out.dtype, out.device
            kept = self._enter(key, bound if given else None, made)
        if not given:
            kept.places.keep(out.data_ptr(), bound)

    def _enter(self, key: Key, bound: BoundLaunch | None, made: tuple[Any, ...] | None) -> _Kept:
        in_force = settings.current() if self._by_settings else None
        kept = _Kept(in_force, key[0], bound, made)
        with suppress(TypeError):  # an option that has no hash
            self._kept.keep(key, kept)
            self._last = key, kept
        return kept

    def _find(self, key: Key | None) -> _Kept | None:
        last, kept = self._last
        try:
            is_last = last == key  # to compare takes less than to hash
        except RuntimeError:  # an option that is no one value
            is_last = False
        if not is_last:
            try:
                kept = self._kept.get(key)
            except (TypeError, RuntimeError):  # one that has no hash: what checks refuse
                return None
            if kept is None:
                return None
            self._last = key, kept
        if kept is None or (kept.settings is not None and kept.settings is not settings.current()):
            return None
        return kept
