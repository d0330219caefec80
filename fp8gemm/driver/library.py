"""Contexts, and kernels loaded from cubins.

A cubin becomes a library, loaded once per process; a library gives one function per context, and so per GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int, c_size_t, c_void_p
from functools import cache

from fp8gemm.driver.api import INVALID_IMAGE, NOT_FOUND, answer, call, driver_error, driver_version, initialise
from fp8gemm.errors import DriverError

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
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@cache
def primary_context(device_index: int) -> c_void_p:
    """The primary context of a GPU, the one that torch uses; kept until the process ends, as the CUDA runtime does."""
    initialise()
    device = answer(c_int, "cuDeviceGet", device_index, detail=f"The device index was {device_index}.")
    return answer(c_void_p, "cuDevicePrimaryCtxRetain", device)


def ensure_context(device_index: int) -> None:
    """Make a GPU's primary context current in this thread if none is: a thread that has not used torch.cuda has none.

    A context that is current stays, whichever GPU it is of, since torch's current device depends on it.
    """
    if not answer(c_void_p, "cuCtxGetCurrent").value:
        call("cuCtxSetCurrent", primary_context(device_index))


@contextmanager
def current_context(device_index: int) -> Iterator[None]:
    """Inside, a GPU's primary context is current in this thread; afterwards, what was current before is again."""
    call("cuCtxPushCurrent", primary_context(device_index))
    try:
        yield
    finally:
        answer(c_void_p, "cuCtxPopCurrent")


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Inside, this thread may load code although another thread is capturing a CUDA graph in the global mode.

    Without it the load fails and the other thread's capture is lost. It does not allow loading under a capture of one's
    own; see `fp8gemm.driver.launch.is_capturing`.
    """
    mode, exchange = c_int(CAPTURE_MODE_RELAXED), "cuThreadExchangeStreamCaptureMode"
    call(exchange, ctypes.byref(mode))  # which is the one before now
    try:
        yield
    finally:
        call(exchange, ctypes.byref(mode))


def load_library(cubin: bytes) -> c_void_p:
    """Load a cubin into the process, for every context, present and future, and return its CUlibrary.

    Raises:
        DriverError: the driver does not take it; `refuses_cubin` tells a bad cubin from any other failure.
    """
    # The driver is told no length and takes what is not ELF for the text of a PTX program.
    if not cubin.startswith(b"\x7fELF"):
        detail = f"Expected an ELF image, got {len(cubin)} bytes that begin with {cubin[:8]!r}."
        raise driver_error("cuLibraryLoadData", INVALID_IMAGE, detail)
    initialise()
    no_options = None, None, 0
    return answer(c_void_p, "cuLibraryLoadData", cubin, *no_options, *no_options)


def unload(library: c_void_p) -> None:
    """Unload a library from every context; no function of it may be launched again."""
    call("cuLibraryUnload", library)


def get_function(library: c_void_p, name: str, device_index: int) -> int:
    """The CUfunction of a library's kernel ``name`` in a GPU's primary context, completely loaded.

    Raises:
        DriverError: the library has no such kernel, or its code cannot be loaded on that GPU.
    """
    kernel = answer(c_void_p, "cuLibraryGetKernel", library, name.encode(), detail=f"The kernel was {name!r}.")
    with current_context(device_index):
        function = answer(c_void_p, "cuKernelGetFunction", kernel)
        # Lazy loading would put the rest off until the first launch, which a graph capture may contain.
        if driver_version() >= (12, 4):
            call("cuFuncLoad", function, since=(12, 4))
    return function.value or 0


def get_global(library: c_void_p, name: str, device_index: int) -> tuple[int, int]:
    """Address and size in bytes of a library's variable ``name`` in a GPU's primary context.

    Raises:
        DriverError: the library has no such variable.
    """
    size, detail = c_size_t(), f"The variable was {name!r}."
    with current_context(device_index):
        asked = ctypes.byref(size), library, name.encode()
        address = answer(c_void_p, "cuLibraryGetGlobal", *asked, detail=detail)
    return address.value or 0, size.value


def set_max_dynamic_shared(function: int, size: int, device_index: int) -> None:
    """Allow a function ``size`` bytes of dynamic shared memory per CTA.

    Raises:
        DriverError: with the kernel's static shared memory that is more than the GPU has for one CTA.
    """
    detail = f"{size} bytes of dynamic shared memory per CTA were asked for."
    with current_context(device_index):
        call("cuFuncSetAttribute", c_void_p(function), MAX_DYNAMIC_SHARED, size, detail=detail)


def refuses_cubin(error: DriverError) -> bool:
    """Whether the driver failed because it cannot use the cubin it was given, so that another build might do."""
    return error.code in _REFUSALS or (error.call == "cuLibraryGetKernel" and error.code == NOT_FOUND)
