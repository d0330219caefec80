"""A CUDA driver to put in the place of libcuda: its functions have the types of ``cuda.h``, and their words are true.

What `fp8gemm.driver` passes goes through the calling convention of C, as to the real one, so that an argument of the
wrong width or a pointer to the wrong thing shows. Results have their names from ``cuda.bindings``, which is made from
the header.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from functools import partial
from typing import Any
from unittest import mock

from cuda.bindings import driver as header

from fp8gemm.driver import api, device, library

_INT, _POINTER, _STRING = POINTER(c_int), POINTER(c_void_p), POINTER(c_char_p)
_NO_OPTIONS = (c_void_p, c_void_p, c_uint)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_INT,),
    "cuGetErrorName": (c_int, _STRING),
    "cuGetErrorString": (c_int, _STRING),
    "cuGetProcAddress_v2": (c_char_p, _POINTER, c_int, c_uint64, c_void_p),
    "cuDeviceGetCount": (_INT,),
    "cuDeviceGet": (_INT, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (_INT, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, c_int),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxPushCurrent": (c_void_p,),
    "cuCtxPopCurrent": (_POINTER,),
    "cuThreadExchangeStreamCaptureMode": (_INT,),
    "cuStreamIsCapturing": (c_void_p, _INT),
    "cuLibraryLoadData": (_POINTER, c_void_p, *_NO_OPTIONS, *_NO_OPTIONS),
    "cuLibraryUnload": (c_void_p,),
    "cuLibraryGetKernel": (_POINTER, c_void_p, c_char_p),
    "cuLibraryGetGlobal": (_POINTER, POINTER(c_size_t), c_void_p, c_char_p),
    "cuKernelGetFunction": (_POINTER, c_void_p),
    "cuFuncLoad": (c_void_p,),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuOccupancyMaxActiveClusters": (_INT, c_void_p, c_void_p),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_INT, c_void_p, c_int, c_size_t),
    "cuTensorMapEncodeTiled": (
        *(c_void_p, c_int, c_uint32, c_void_p),
        *(POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint32), POINTER(c_uint32)),
        *(c_int, c_int, c_int, c_int),
    ),
    "cuTensorMapReplaceAddress": (c_void_p, c_void_p),
}
"""Types of arguments as in ``cuda.h``; device addresses and handles are pointers."""
EXPORTED = {name for name in PROTOTYPES if name.startswith(("cuInit", "cuDriver", "cuGet"))}
"""What is asked of libcuda itself; the rest comes by cuGetProcAddress."""
_NAMES = {int(result): result.name for result in header.CUresult}
_UNTYPED = ctypes.CFUNCTYPE(c_int)


def _forget() -> None:
    """What was remembered of one driver is not another's."""
    for remembered in (
        *(api.entry_point, api.driver_version, library.primary_context),
        *(device.device_info, device.hopper_info),
    ):
        remembered.cache_clear()


class FakeDriver:
    """One H200 on a driver of CUDA 13.0, or whatever a test changes; in functions that it does not have, all is well.

    Attributes:
        calls: of functions that came by cuGetProcAddress: name and arguments, less those that point to answers.
        failing: results of functions that shall fail, by name.
        answers: what is written where a function's first argument points to, by the function's name.
        lacks: functions that this driver does not have, and says so.
        finds_nothing: those of which it says that all is well, and has none.
        since: by which CUDA's definition each function was asked for.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, int] = {}
        self.answers: dict[str, int] = {"cuDriverGetVersion": 13000, "cuDeviceGetCount": 1}
        self.attributes = {
            device.COMPUTE_CAPABILITY_MAJOR: 9,
            device.COMPUTE_CAPABILITY_MINOR: 0,
            device.MULTIPROCESSOR_COUNT: 132,
            device.L2_CACHE_SIZE: 60 << 20,
            device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: 232448,
        }
        self.name = b"NVIDIA H200"
        self.lacks: set[str] = set()
        self.finds_nothing: set[str] = set()
        self.since: dict[str, int] = {}
        self._kept: list[Any] = []
        self._functions: dict[str, Any] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, this is the driver of the process."""

        def libcuda() -> FakeDriver:
            return self

        _forget()
        try:
            with mock.patch.object(api, "_libcuda", libcuda):
                yield
                assert api._libcuda is libcuda, "what was put in its place would bring it back, for good"
        finally:
            _forget()

    @property
    def names(self) -> list[str]:
        """Of the functions that were called."""
        return [name for name, *_ in self.calls]

    def __getattr__(self, name: str) -> Any:
        """A function that the library exports."""
        if name not in EXPORTED or name in self.__dict__.get("lacks", ()):
            raise AttributeError(name)
        return self._function(name)

    def _function(self, name: str) -> Any:
        """A function of C, called without a prototype, as `fp8gemm.driver.api` calls them."""
        if name not in self._functions:
            typed = ctypes.CFUNCTYPE(c_int, *PROTOTYPES[name])(partial(self._called, name))
            self._functions[name] = ctypes.cast(typed, _UNTYPED), typed
        return self._functions[name][0]

    def _called(self, name: str, *arguments: Any) -> int:
        try:
            if name not in EXPORTED:
                self.calls.append((name, *(each for each in arguments if not isinstance(each, ctypes._Pointer))))
            if code := self.failing.get(name, 0):
                return code
            if name in self.answers:
                arguments[0][0] = self.answers[name]
            own = getattr(type(self), "on_" + name, None)
            return 0 if own is None else int(own(self, *arguments) or 0)
        except BaseException as error:  # which ctypes would only print
            self.calls.append((name, error))
            return 999

    def on_cuGetErrorName(self, code: int, text: Any) -> int:
        return self._say(text, code, str)

    def on_cuGetErrorString(self, code: int, text: Any) -> int:
        return self._say(text, code, "{} in words".format)

    def _say(self, text: Any, code: int, words: Callable[[str], str]) -> int:
        if code not in _NAMES:
            return 1  # CUDA_ERROR_INVALID_VALUE, as the driver answers
        self._kept.append(words(_NAMES[code]).encode())
        text[0] = self._kept[-1]
        return 0

    def on_cuGetProcAddress_v2(self, name: bytes, pointer: Any, version: int, flags: int, status: int | None) -> int:
        assert (flags, status) == (0, None)
        known = name.decode()
        self.since[known] = version
        if known in self.lacks:
            return api.NOT_FOUND
        if known not in self.finds_nothing:
            pointer[0] = ctypes.cast(self._function(known), c_void_p).value
        return 0

    def on_cuDeviceGet(self, found: Any, index: int) -> int:
        found[0] = index
        return 0 if index < self.answers["cuDeviceGetCount"] else 101

    def on_cuDeviceGetName(self, found: int, size: int, index: int) -> None:
        ctypes.memmove(found, self.name + b"\0", min(size, len(self.name) + 1))

    def on_cuDeviceGetAttribute(self, found: Any, attribute: int, index: int) -> None:
        found[0] = self.attributes[attribute]

    def on_cuDevicePrimaryCtxRetain(self, found: Any, index: int) -> None:
        found[0] = 0x7F00_C000_0000 + index
