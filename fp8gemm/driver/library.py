"""Checked calls of the CUDA driver, and kernels loaded from cubins.

What runs rarely goes through ``cuda.bindings.driver`` and `check`. What runs on every launch goes through the driver's
own function pointers (`entry_point`), with argument structures that are built once and kept.

A cubin becomes a library, loaded once per process; a library gives one function per context, and so per GPU.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fp8gemm.driver import forking
from fp8gemm.errors import DriverError, UnsupportedDeviceError

Version = tuple[int, int]

INVALID_IMAGE = 200  # CUDA_ERROR_INVALID_IMAGE
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND

# The driver's words for "this is not code for this GPU". With lazy loading they may come as late as the first time
# that the function is asked for.
_REFUSALS = frozenset(
    {
        INVALID_IMAGE,
        209,  # CUDA_ERROR_NO_BINARY_FOR_GPU
        218,  # CUDA_ERROR_INVALID_PTX
        221,  # CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        222,  # CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        223,  # CUDA_ERROR_JIT_COMPILATION_DISABLED
        300,  # CUDA_ERROR_INVALID_SOURCE
    }
)


@cache
def bindings() -> Any:
    """The module ``cuda.bindings.driver``, imported on first use: it takes about 25 ms where torch has not done so.

    Raises:
        UnsupportedDeviceError: the package cuda-python is missing or too old to have it.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UnsupportedDeviceError(
            f"Running on a GPU needs the package cuda-python>=12.9,<14, but cuda.bindings.driver cannot be imported: "
            f"{error}. Install it with `pip install 'cuda-python>=12.9,<14'`."
        ) from error


def driver_error(call: str, code: int, detail: str = "") -> DriverError:
    """The `DriverError` for a failed call: its name, the CUresult's name and the driver's description of it."""
    name, description = f"CUresult {code}", "no description"
    try:
        driver = bindings()
        result = driver.CUresult(code)
        name = result.name
        failed, text = driver.cuGetErrorString(result)
        description = description if int(failed) else text.decode(errors="replace")
    except (ValueError, RuntimeError):
        pass  # NOTE: a code that this cuda-python does not know, or no driver to ask: the number alone must do
    return DriverError(f"{call} failed with {name}: {description}.{detail and ' ' + detail}", call=call, code=code)


def check(result: tuple[Any, ...], call: str, detail: str = "") -> Any:
    """What a ``cuda.bindings.driver`` function returned, less its CUresult: None, one value, or a tuple of several.

    Raises:
        DriverError: the CUresult is not CUDA_SUCCESS; ``detail`` ends its message.
    """
    code = int(result[0])
    if code:
        raise driver_error(call, code, detail)
    return result[1] if len(result) == 2 else result[1:] or None


def initialise() -> None:
    """Start the driver (``cuInit``); it creates no context, and to do it again costs nothing."""
    if forking.lost:
        forking.refuse()
    check(bindings().cuInit(0), "cuInit")
    forking.note_start()


@cache
def driver_version() -> Version:
    """(major, minor) of the newest CUDA that the installed driver serves."""
    version = check(bindings().cuDriverGetVersion(), "cuDriverGetVersion")
    return version // 1000, version % 1000 // 10


@cache
def entry_point(name: str, since: Version) -> Callable[..., int]:
    """The driver's function ``name``, as CUDA ``since`` defines it, as a ctypes function that returns the CUresult.

    It has no argument types on purpose, because converting arguments would double a call's cost: pass pointers and
    64-bit values as ctypes objects. A bare Python int is passed as a C int.
    """
    initialise()
    version = since[0] * 1000 + since[1] * 10
    # A driver without the function answers CUDA_ERROR_NOT_FOUND, or succeeds with a null pointer.
    found = check(bindings().cuGetProcAddress(name.encode(), version, 0), f"cuGetProcAddress({name})")
    pointer = int(found[0])
    if not pointer:
        raise driver_error(f"cuGetProcAddress({name})", NOT_FOUND, f"It needs a driver of CUDA {since[0]}.{since[1]}.")
    return ctypes.CFUNCTYPE(ctypes.c_int)(pointer)


@cache
def primary_context(device_index: int) -> Any:
    """The primary context of a GPU, the one that torch uses; kept until the process ends, as the CUDA runtime does."""
    initialise()
    driver = bindings()
    device = check(driver.cuDeviceGet(device_index), "cuDeviceGet", f"The device index was {device_index}.")
    return check(driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")


def ensure_context(device_index: int) -> None:
    """Make a GPU's primary context current in this thread if none is: a thread that has not used torch.cuda has none.

    A context that is current stays, whichever GPU it is of, since torch's current device depends on it.
    """
    driver = bindings()
    if not int(check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")):
        check(driver.cuCtxSetCurrent(primary_context(device_index)), "cuCtxSetCurrent")


@contextmanager
def current_context(device_index: int) -> Iterator[None]:
    """Inside, a GPU's primary context is current in this thread; afterwards, what was current before is again."""
    driver = bindings()
    check(driver.cuCtxPushCurrent(primary_context(device_index)), "cuCtxPushCurrent")
    try:
        yield
    finally:
        check(driver.cuCtxPopCurrent(), "cuCtxPopCurrent")


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Inside, this thread may load code although another thread is capturing a CUDA graph in the global mode.

    Without it the load fails and the other thread's capture is lost. It does not allow loading under a capture of one's
    own; see `fp8gemm.driver.launch.is_capturing`.
    """
    driver = bindings()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    call = "cuThreadExchangeStreamCaptureMode"
    before = check(driver.cuThreadExchangeStreamCaptureMode(relaxed), call)
    try:
        yield
    finally:
        check(driver.cuThreadExchangeStreamCaptureMode(before), call)


def load_library(cubin: bytes) -> Any:
    """Load a cubin into the process, for every context, present and future, and return its CUlibrary.

    Raises:
        DriverError: the driver does not take it; `refuses_cubin` tells a bad cubin from any other failure.
    """
    # The driver is told no length and takes what is not ELF for the text of a PTX program.
    if not cubin.startswith(b"\x7fELF"):
        detail = f"Expected an ELF image, got {len(cubin)} bytes that begin with {cubin[:8]!r}."
        raise driver_error("cuLibraryLoadData", INVALID_IMAGE, detail)
    initialise()
    return check(bindings().cuLibraryLoadData(cubin, [], [], 0, [], [], 0), "cuLibraryLoadData")


def unload(library: Any) -> None:
    """Unload a library from every context; no function of it may be launched again."""
    check(bindings().cuLibraryUnload(library), "cuLibraryUnload")


def get_function(library: Any, name: str, device_index: int) -> int:
    """The CUfunction of a library's kernel ``name`` in a GPU's primary context, completely loaded.

    Raises:
        DriverError: the library has no such kernel, or its code cannot be loaded on that GPU.
    """
    driver = bindings()
    kernel = check(driver.cuLibraryGetKernel(library, name.encode()), "cuLibraryGetKernel", f"The kernel was {name!r}.")
    with current_context(device_index):
        function = check(driver.cuKernelGetFunction(kernel), "cuKernelGetFunction")
        # Lazy loading would put the rest off until the first launch, which a graph capture may contain.
        if driver_version() >= (12, 4):
            check(driver.cuFuncLoad(function), "cuFuncLoad")
    return int(function)


def get_global(library: Any, name: str, device_index: int) -> tuple[int, int]:
    """Address and size in bytes of a library's variable ``name`` in a GPU's primary context.

    Raises:
        DriverError: the library has no such variable.
    """
    with current_context(device_index):
        result = bindings().cuLibraryGetGlobal(library, name.encode())
    address, size = check(result, "cuLibraryGetGlobal", f"The variable was {name!r}.")
    return int(address), int(size)


def set_max_dynamic_shared(function: int, size: int, device_index: int) -> None:
    """Allow a function ``size`` bytes of dynamic shared memory per CTA.

    Raises:
        DriverError: with the kernel's static shared memory that is more than the GPU has for one CTA.
    """
    driver = bindings()
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    with current_context(device_index):
        result = driver.cuFuncSetAttribute(driver.CUfunction(function), attribute, size)
    check(result, "cuFuncSetAttribute", f"{size} bytes of dynamic shared memory per CTA were asked for.")


def refuses_cubin(error: DriverError) -> bool:
    """Whether the driver failed because it cannot use the cubin it was given, so that another build might do."""
    return error.code in _REFUSALS or (error.call == "cuLibraryGetKernel" and error.code == NOT_FOUND)
