"""Launching: the kernel's argument block, the launch configuration, and the call that joins them.

A launch costs about 0.3 µs of Python because all that the driver reads is built beforehand: a call stores the grid and
the stream in a structure that is already there, and passes four prebuilt pointers.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fp8gemm.driver.device import device_info
from fp8gemm.driver.library import (
    INVALID_CONTEXT,
    bindings,
    check,
    current_context,
    driver_error,
    ensure_context,
    entry_point,
)
from fp8gemm.driver.tensor_map import MAP_ALIGNMENT, MAP_BYTES
from fp8gemm.errors import InputError

_SINCE = (12, 0)  # the CUDA version whose definition of the two driver functions is called
_WARP = 32
_MAX_THREADS = 1024
_MAX_PORTABLE_CLUSTER = 8
_CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT

_TensorMap = ctypes.c_uint64 * (MAP_BYTES // 8)


class KernelParams(ctypes.Structure):
    """``Kernel::Params`` as the device code declares it: the one table of offsets on the host.

    Attributes:
        tensor_map_a, tensor_map_b, tensor_map_scales_a, tensor_map_scales_b, tensor_map_d, tensor_map_a_tail: the maps,
            at offsets 0, 128, 256, 384, 512 and 640.
        scales_b: device address of B's scales, where a kernel reads them without a map.
        d: device address of the output.
        d_stride_m, d_stride_n: the output's strides, in elements.
        c: device address of the matrix that is added.
        c_stride_m, c_stride_n: its strides, in elements.
        bias: device address of the row that is added to every row.
        m: rows of A and of the output.
        static_weights: nonzero lets a kernel read B and its scales before the previous grids have ended.
        b: device address of B, where a kernel reads it without a map.
        scales_a: device address of A's scales, where a kernel reads them without a map.
        scales_a_stride_m, scales_a_stride_k: their strides, in elements.
    """

    _fields_ = [
        ("tensor_map_a", _TensorMap),
        ("tensor_map_b", _TensorMap),
        ("tensor_map_scales_a", _TensorMap),
        ("tensor_map_scales_b", _TensorMap),
        ("tensor_map_d", _TensorMap),
        ("tensor_map_a_tail", _TensorMap),
        ("scales_b", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
        ("d_stride_m", ctypes.c_int64),
        ("d_stride_n", ctypes.c_int64),
        ("c", ctypes.c_void_p),
        ("c_stride_m", ctypes.c_int64),
        ("c_stride_n", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("m", ctypes.c_uint32),
        ("static_weights", ctypes.c_uint32),
        ("b", ctypes.c_void_p),
        ("scales_a", ctypes.c_void_p),
        ("scales_a_stride_m", ctypes.c_int64),
        ("scales_a_stride_k", ctypes.c_int64),
        ("_padding", ctypes.c_uint32 * 6),  # the size is a multiple of the alignment
    ]


class ArgumentBlock:
    """The arguments of one launch: `KernelParams` at a 64-byte boundary. It belongs to one thread.

    The driver copies the block during the launch, so that it may be changed as soon as `launch` has returned.

    Attributes:
        params: the fields to set before a launch.
        tensor_map_a, tensor_map_b, tensor_map_scales_a, tensor_map_scales_b, tensor_map_d, tensor_map_a_tail: host
            addresses for `encode_2d`.
        kernel_params: the ``void**`` that the driver takes: an array of one pointer, to the block.
    """

    __slots__ = (
        "_memory",
        "_pointers",
        "kernel_params",
        "params",
        "tensor_map_a",
        "tensor_map_a_tail",
        "tensor_map_b",
        "tensor_map_d",
        "tensor_map_scales_a",
        "tensor_map_scales_b",
    )

    def __init__(self) -> None:
        self._memory = (ctypes.c_char * (ctypes.sizeof(KernelParams) + MAP_ALIGNMENT))()
        self.params = KernelParams.from_buffer(self._memory, -ctypes.addressof(self._memory) % MAP_ALIGNMENT)
        address = ctypes.addressof(self.params)
        self.tensor_map_a = address + KernelParams.tensor_map_a.offset
        self.tensor_map_b = address + KernelParams.tensor_map_b.offset
        self.tensor_map_scales_a = address + KernelParams.tensor_map_scales_a.offset
        self.tensor_map_scales_b = address + KernelParams.tensor_map_scales_b.offset
        self.tensor_map_d = address + KernelParams.tensor_map_d.offset
        self.tensor_map_a_tail = address + KernelParams.tensor_map_a_tail.offset
        self._pointers = (ctypes.c_void_p * 1)(address)
        self.kernel_params = ctypes.c_void_p(ctypes.addressof(self._pointers))


class _AttributeValue(ctypes.Union):
    """CUlaunchAttributeValue, as far as it is used here."""

    _fields_ = [("cluster", ctypes.c_uint * 3), ("flag", ctypes.c_int), ("_size", ctypes.c_char * 64)]


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("_padding", ctypes.c_char * 4), ("value", _AttributeValue)]


class _NativeConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    ]


class _Prepared(threading.local):
    """One thread's copy of a launch in the driver's terms, made the first time that the thread launches it."""

    def __init__(self, config: LaunchConfig) -> None:
        native, attributes = _native_config(config)
        self._attributes = attributes  # keeps alive what native points to
        call = entry_point("cuLaunchKernelEx", _SINCE)
        self.ready: tuple[Callable[..., int], _NativeConfig, ctypes.c_void_p, ctypes.c_void_p] = (
            call,
            native,
            ctypes.c_void_p(ctypes.addressof(native)),
            ctypes.c_void_p(config.function),
        )


def _native_config(config: LaunchConfig) -> tuple[_NativeConfig, Any]:
    ids = bindings().CUlaunchAttributeID
    attributes = []
    if config.cluster_x > 1:
        value = _AttributeValue(cluster=(config.cluster_x, 1, 1))
        attributes.append(_Attribute(id=int(ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION), value=value))
    if config.programmatic:
        value = _AttributeValue(flag=1)
        attributes.append(_Attribute(id=int(ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION), value=value))
    array = (_Attribute * len(attributes))(*attributes)
    native = _NativeConfig(
        grid_x=config.grid_x,
        grid_y=1,
        grid_z=1,
        block_x=config.threads,
        block_y=1,
        block_z=1,
        shared_bytes=config.dynamic_shared_bytes,
        attributes=ctypes.addressof(array) if attributes else None,
        num_attributes=len(attributes),
    )
    return native, array


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """How a kernel is launched; one may serve many threads.

    Attributes:
        function: the CUfunction as an integer.
        device_index: the GPU in whose primary context the function lives.
        grid_x: CTAs, a multiple of ``cluster_x``.
        threads: threads per CTA, whole warps.
        cluster_x: CTAs per cluster, at most 8; 1 launches without clusters.
        dynamic_shared_bytes: dynamic shared memory per CTA.
        programmatic: let the kernel start before the one ahead of it in the stream has ended; it must execute
            ``griddepcontrol.wait`` before it reads what that one writes.

    Raises:
        InputError: a number is outside its range.
    """

    function: int
    device_index: int
    grid_x: int
    threads: int
    cluster_x: int = 1
    dynamic_shared_bytes: int = 0
    programmatic: bool = False
    _prepared: _Prepared = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.cluster_x <= _MAX_PORTABLE_CLUSTER:
            raise InputError(f"cluster_x: expected 1 to {_MAX_PORTABLE_CLUSTER} CTAs, got {self.cluster_x}.")
        if self.grid_x <= 0 or self.grid_x % self.cluster_x:
            raise InputError(f"grid_x: expected a positive multiple of cluster_x {self.cluster_x}, got {self.grid_x}.")
        if not 0 < self.threads <= _MAX_THREADS or self.threads % _WARP:
            raise InputError(f"threads: expected a multiple of {_WARP} up to {_MAX_THREADS}, got {self.threads}.")
        if self.dynamic_shared_bytes < 0:
            raise InputError(f"dynamic_shared_bytes: expected 0 or more, got {self.dynamic_shared_bytes}.")
        # A frozen dataclass has no other way to fill a field of its own.
        object.__setattr__(self, "_prepared", _Prepared(self))


def launch(config: LaunchConfig, arguments: ArgumentBlock, stream: int, grid_x: int | None = None) -> None:
    """Launch a kernel and return without waiting for it.

    Args:
        config: the kernel and its launch shape.
        arguments: this thread's argument block; it may be changed again once this returns.
        stream: the CUstream as an integer; 0, the legacy default stream, is that of the context current in this thread.
        grid_x: CTAs of this launch, a multiple of the config's cluster; the config's own number without it.

    Raises:
        DriverError: the launch failed, or the driver reports here what an earlier kernel did wrong.
    """
    call, native, pointer, function = config._prepared.ready
    native.grid_x = grid_x or config.grid_x
    native.stream = stream
    code = call(pointer, function, arguments.kernel_params, None)
    if code == INVALID_CONTEXT:  # a thread that has not used torch.cuda has none
        ensure_context(config.device_index)
        code = call(pointer, function, arguments.kernel_params, None)
    if code:
        shape = f"grid {native.grid_x}, cluster {config.cluster_x}, {config.threads} threads"
        shared = f"{config.dynamic_shared_bytes} bytes of dynamic shared memory"
        raise driver_error("cuLaunchKernelEx", code, f"The launch was {shape}, {shared}, GPU {config.device_index}.")


def max_active_clusters(config: LaunchConfig) -> int:
    """How many of a kernel's clusters, or CTAs where it has none, its GPU can hold at once.

    A persistent grid that is larger leaves some of its CTAs waiting for others to end.
    """
    with current_context(config.device_index):
        if config.cluster_x == 1:
            return _max_active_ctas(config)
        _, _, pointer, function = config._prepared.ready
        count = ctypes.c_int()
        code = entry_point("cuOccupancyMaxActiveClusters", _SINCE)(ctypes.byref(count), function, pointer)
        if code:
            raise driver_error("cuOccupancyMaxActiveClusters", code, f"The cluster was {config.cluster_x}.")
        return count.value


def _max_active_ctas(config: LaunchConfig) -> int:
    driver = bindings()
    call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    function = driver.CUfunction(config.function)
    per_sm = check(getattr(driver, call)(function, config.threads, config.dynamic_shared_bytes), call)
    return int(per_sm) * device_info(config.device_index).num_sms


def is_capturing(stream: int) -> bool:
    """Whether a CUDA graph is being captured from a stream, or makes the legacy default stream unusable."""
    driver = bindings()
    result = driver.cuStreamIsCapturing(stream)
    if int(result[0]) == _CAPTURE_IMPLICIT:
        return True
    status = check(result, "cuStreamIsCapturing")
    return bool(status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)
