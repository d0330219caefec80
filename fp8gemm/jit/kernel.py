"""Kernels in the driver: from a request to a function that can be launched, once per kernel and GPU."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fp8gemm.driver.api import driver_version
from fp8gemm.driver.launch import is_capturing
from fp8gemm.driver.library import (
    current_context,
    get_function,
    load_library,
    refuses_cubin,
    relaxed_capture,
    set_max_dynamic_shared,
    unload,
)
from fp8gemm.errors import CacheMissError, DriverError
from fp8gemm.frozen import dataclass
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.build import build, quarantine, rebuild
from fp8gemm.jit.render import ENTRY
from fp8gemm.jit.request import KernelRequest


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel ready to launch on one GPU.

    Attributes:
        function: the CUfunction in that GPU's primary context, as an integer.
        artifact: what it was loaded from.
        device_index: the GPU.
        dynamic_shared_bytes: the most dynamic shared memory that a launch may ask for, per CTA.
    """

    function: int
    artifact: Artifact
    device_index: int
    dynamic_shared_bytes: int


# Reading a dict needs no lock; every change is made with _lock held.
_lock = threading.Lock()
_kernels: dict[tuple[KernelRequest, int, Path | None], LoadedKernel] = {}
_libraries: dict[str, Any] = {}  # by the artifact's key


def load(
    request: KernelRequest,
    device_index: int,
    dynamic_shared_bytes: int,
    *,
    allow_compile: bool = True,
    include_dir: Path | None = None,
) -> LoadedKernel:
    """The kernel for a request on a GPU, built and loaded if it is not yet; threads asking together load it once.

    Args:
        request: which kernel.
        device_index: the GPU.
        dynamic_shared_bytes: dynamic shared memory per CTA that launches will ask for.
        allow_compile: whether a kernel that is in no cache may be compiled.
        include_dir: the device headers to compile; those of this installation by default.

    Raises:
        CacheMissError: it is not ready, and settings, ``allow_compile`` or a graph capture forbid to make it so.
        CompileError: it had to be compiled and could not be.
        DriverError: the driver refuses it, even freshly compiled, or fails otherwise.
    """
    place = (request, device_index, include_dir)
    ready = _kernels.get(place)
    if ready is not None and ready.dynamic_shared_bytes >= dynamic_shared_bytes:
        return ready
    _refuse_during_capture(request, device_index)
    artifact = build(request, allow_compile=allow_compile, include_dir=include_dir)
    with _lock:
        ready = _kernels.get(place)  # another thread may have been faster
        if ready is None or ready.dynamic_shared_bytes < dynamic_shared_bytes:
            try:
                ready = _load(artifact, device_index, dynamic_shared_bytes)
            except DriverError as error:
                _refuse_healing(artifact, error, allow_compile=allow_compile)
                rebuilt = rebuild(artifact, reason=str(error), include_dir=include_dir)
                ready = _load_rebuilt(rebuilt, device_index, dynamic_shared_bytes)
            _kernels[place] = ready
    return ready


def is_loaded(request: KernelRequest, device_index: int, *, include_dir: Path | None = None) -> bool:
    """Whether a request's kernel can be launched on a GPU at once, even while a graph is being captured."""
    return (request, device_index, include_dir) in _kernels


def _refuse_during_capture(request: KernelRequest, device_index: int) -> None:
    import torch

    with current_context(device_index):  # a default stream is that of the current context
        capturing = is_capturing(torch.cuda.current_stream(device_index).cuda_stream)
    if capturing:
        raise CacheMissError(
            f"Kernel {request.label} is not loaded on GPU {device_index}, and a CUDA graph is being captured from the "
            f"current stream, during which nothing can be compiled or loaded. Make the same call once before the "
            f"capture begins."
        )


def _refuse_healing(artifact: Artifact, error: DriverError, *, allow_compile: bool) -> None:
    """Raise, unless the driver has refused the cubin and compiling it again is a cure that is allowed."""
    if not refuses_cubin(error):
        raise error
    if _major(artifact.nvrtc_version) > driver_version()[0]:
        # The entry is sound and serves machines with a newer driver: it is not for this one to replace.
        raise _refusal(artifact, error, "The cached cubin was left as it is.") from error
    if not allow_compile:
        quarantine(artifact, reason=str(error))
        raise CacheMissError(
            f"Kernel {artifact.request.label} was ready, but the driver refuses its cubin, and it may not be compiled "
            f"again here. {error}"
        ) from error


def _load_rebuilt(rebuilt: Artifact, device_index: int, dynamic_shared_bytes: int) -> LoadedKernel:
    try:
        return _load(rebuilt, device_index, dynamic_shared_bytes)
    except DriverError as error:
        if not refuses_cubin(error):
            raise
        raise _refusal(rebuilt, error, "Compiling it again did not help.") from error


def _load(artifact: Artifact, device_index: int, dynamic_shared_bytes: int) -> LoadedKernel:
    known = _libraries.get(artifact.key)
    with relaxed_capture():
        library = load_library(artifact.cubin) if known is None else known
        try:
            function = get_function(library, ENTRY, device_index)
            set_max_dynamic_shared(function, dynamic_shared_bytes, device_index)
        except DriverError:
            if known is None:
                unload(library)
            raise
    _libraries[artifact.key] = library
    return LoadedKernel(function, artifact, device_index, dynamic_shared_bytes)


def _refusal(artifact: Artifact, error: DriverError, outcome: str) -> DriverError:
    major, minor = driver_version()
    return DriverError(
        f"The driver, which serves CUDA {major}.{minor}, refuses kernel {artifact.request.label}, which NVRTC "
        f"{artifact.nvrtc_version} compiled. {outcome} A driver takes what NVRTC of its own major version or an older "
        f"one compiled: update the driver, or compile again with such an NVRTC (`fp8gemm warmup --recompile`). {error}",
        call=error.call,
        code=error.code,
    )


def _major(version: str) -> int:
    return int(version.split(".")[0])
