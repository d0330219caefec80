"""The CUDA driver's functions, by its own pointers, and what a failed call of one is.

By ctypes and not by ``cuda.bindings``, whose import takes as long as all else of a first call that finds its kernel in
the cache. What runs on every launch keeps `entry_point`'s function and argument structures that are built once; the
rest goes through `call` and `answer`. Numbers of results and of attributes are those of ``cuda.h``, which stay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from fp8gemm.driver import forking
from fp8gemm.errors import DriverError

Version = tuple[int, int]

SINCE = (12, 0)
"""The CUDA version by whose definition functions are called: the oldest whose driver can run the kernels."""

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
INVALID_IMAGE = 200  # CUDA_ERROR_INVALID_IMAGE
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND

_Answer = TypeVar("_Answer", bound="ctypes._SimpleCData[Any]")


@cache
def _libcuda() -> Any:
    """The driver's library.

    Raises:
        OSError: there is none.
    """
    return ctypes.CDLL("libcuda.so.1")


def exported(name: str) -> Callable[..., int]:
    """A function that every driver exports, and that needs no `initialise`.

    Raises:
        OSError: there is no driver.
        DriverError: it is too old to have the function.
    """
    try:
        found: Callable[..., int] = getattr(_libcuda(), name)
    except AttributeError:
        raise driver_error(name, NOT_FOUND, f"It needs a driver of CUDA {SINCE[0]}.{SINCE[1]}.") from None
    return found


def driver_error(name: str, code: int, detail: str = "") -> DriverError:
    """The `DriverError` for a failed call: its name, the CUresult's name and the driver's description of it."""
    result = _words_of("cuGetErrorName", code) or f"CUresult {code}"
    description = _words_of("cuGetErrorString", code) or "no description"
    return DriverError(f"{name} failed with {result}: {description}.{detail and ' ' + detail}", call=name, code=code)


def _words_of(function: str, code: int) -> str:
    """What the driver has to say of a result, "" if it knows nothing of it or there is none to ask."""
    text = ctypes.c_char_p()
    try:
        failed = getattr(_libcuda(), function)(code, ctypes.byref(text))
    except (OSError, AttributeError):
        return ""
    return "" if failed or text.value is None else text.value.decode(errors="replace")


def check(code: int, name: str, detail: str = "") -> None:
    """Nothing, if a call succeeded.

    Raises:
        DriverError: the CUresult is not CUDA_SUCCESS; ``detail`` ends its message.
    """
    if code:
        raise driver_error(name, code, detail)


def initialise() -> None:
    """Start the driver (``cuInit``); it creates no context, and to do it again costs nothing."""
    if forking.lost:
        forking.refuse()
    check(exported("cuInit")(0), "cuInit")
    forking.note_start()


@cache
def driver_version() -> Version:
    """(major, minor) of the newest CUDA that the installed driver serves."""
    version = ctypes.c_int()
    check(exported("cuDriverGetVersion")(ctypes.byref(version)), "cuDriverGetVersion")
    return version.value // 1000, version.value % 1000 // 10


@cache
def entry_point(name: str, since: Version = SINCE) -> Callable[..., int]:
    """The driver's function ``name``, as CUDA ``since`` defines it, as a ctypes function that returns the CUresult.

    It has no argument types on purpose, because converting arguments would double a call's cost: pass pointers and
    64-bit values as ctypes objects. A bare Python int is passed as a C int.
    """
    initialise()
    pointer, version = ctypes.c_void_p(), since[0] * 1000 + since[1] * 10
    find = exported("cuGetProcAddress_v2")
    code = find(name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(0), None)
    # A driver without the function answers CUDA_ERROR_NOT_FOUND, or succeeds with a null pointer.
    if code or not pointer.value:
        needed = f"It needs a driver of CUDA {since[0]}.{since[1]}."
        raise driver_error(f"cuGetProcAddress({name})", code or NOT_FOUND, needed)
    return ctypes.CFUNCTYPE(ctypes.c_int)(pointer.value)


def call(name: str, *arguments: Any, detail: str = "", since: Version = SINCE) -> None:
    """Call a function of the driver, with arguments as for `entry_point`.

    Raises:
        DriverError: it failed; ``detail`` ends the message.
    """
    check(entry_point(name, since)(*arguments), name, detail)


def answer(kind: type[_Answer], name: str, *arguments: Any, detail: str = "") -> _Answer:
    """What a function of the driver writes where its first argument points to; the others as for `call`."""
    found = kind()
    call(name, ctypes.byref(found), *arguments, detail=detail)
    return found
