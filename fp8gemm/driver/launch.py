"""Launching: the launch configuration, and the call that joins it with the kernel's arguments.

All that the driver reads is built once, so that to launch again costs about 0.3 µs of Python: four pointers are passed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import field
from typing import Any

from fp8gemm.driver.api import INVALID_CONTEXT, answer, check, driver_error, entry_point
from fp8gemm.driver.arguments import Arguments
from fp8gemm.driver.device import device_info
from fp8gemm.driver.library import current_context, ensure_context
from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass

_WARP = 32
_MAX_THREADS = 1024
_MAX_PORTABLE_CLUSTER = 8
_CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
NOT_CAPTURING = 0  # CU_STREAM_CAPTURE_STATUS_NONE
CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


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


class _Prepared:
    """A launch in the driver's terms; nothing changes it once it is made."""

    def __init__(self, config: LaunchConfig) -> None:
        self.native, self.attributes = _native_config(config)
        self.call: Callable[..., int] = entry_point("cuLaunchKernelEx")
        self.function = ctypes.c_void_p(config.function)
        self.pointer = ctypes.c_void_p(ctypes.addressof(self.native))


def _native_config(config: LaunchConfig) -> tuple[_NativeConfig, Any]:
    attributes = []
    if config.cluster_x > 1:
        value = _AttributeValue(cluster=(config.cluster_x, 1, 1))
        attributes.append(_Attribute(id=CLUSTER_DIMENSION, value=value))
    if config.programmatic:
        value = _AttributeValue(flag=1)
        attributes.append(_Attribute(id=PROGRAMMATIC_SERIALIZATION, value=value))
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


class BoundLaunch:
    """A launch of which everything is given, so that only the driver's call is left; threads may share it.

    Args:
        config: the kernel and its launch shape.
        arguments: what it is called with; they must not change any more.
        stream: the CUstream as an integer; 0, the legacy default stream, is that of the context current in a thread.
        grid_x: CTAs of this launch, a multiple of the config's cluster; the config's own number without it.

    Attributes:
        config, arguments: as given.
    """

    __slots__ = ("_call", "_call_arguments", "_native", "arguments", "config")

    def __init__(self, config: LaunchConfig, arguments: Arguments[Any], stream: int, grid_x: int | None = None) -> None:
        prepared = config._prepared
        self.config, self.arguments = config, arguments
        self._native = _NativeConfig.from_buffer_copy(prepared.native)
        self._native.grid_x = grid_x or config.grid_x
        self._native.stream = stream
        self._call = prepared.call
        pointer = ctypes.c_void_p(ctypes.addressof(self._native))
        self._call_arguments = pointer, prepared.function, arguments.kernel_params, None

    @property
    def grid_x(self) -> int:
        """CTAs of the launch."""
        return int(self._native.grid_x)

    def __call__(self) -> None:
        """Launch the kernel and return without waiting for it.

        Raises:
            DriverError: the launch failed, or the driver reports here what an earlier kernel did wrong.
        """
        code = self._call(*self._call_arguments)
        if code:
            self._recover(code)

    def _recover(self, code: int) -> None:
        config = self.config
        if code == INVALID_CONTEXT:  # a thread that has not used torch.cuda has none
            ensure_context(config.device_index)
            code = self._call(*self._call_arguments)
        if code:
            shape = f"grid {self.grid_x}, cluster {config.cluster_x}, {config.threads} threads"
            shared = f"{config.dynamic_shared_bytes} bytes of dynamic shared memory"
            raise driver_error(
                "cuLaunchKernelEx", code, f"The launch was {shape}, {shared}, GPU {config.device_index}."
            )


def launch(config: LaunchConfig, arguments: Arguments[Any], stream: int, grid_x: int | None = None) -> None:
    """Launch once what nobody will launch again; see `BoundLaunch`."""
    BoundLaunch(config, arguments, stream, grid_x)()


def max_active_clusters(config: LaunchConfig) -> int:
    """How many of a kernel's clusters, or CTAs where it has none, its GPU can hold at once.

    A persistent grid that is larger leaves some of its CTAs waiting for others to end.
    """
    prepared, detail = config._prepared, f"The cluster was {config.cluster_x}."
    with current_context(config.device_index):
        if config.cluster_x > 1:
            clusters = "cuOccupancyMaxActiveClusters"
            return answer(ctypes.c_int, clusters, prepared.function, prepared.pointer, detail=detail).value
        per_sm = answer(
            ctypes.c_int,
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            prepared.function,
            config.threads,
            ctypes.c_size_t(config.dynamic_shared_bytes),
        )
    return per_sm.value * device_info(config.device_index).num_sms


def is_capturing(stream: int) -> bool:
    """Whether a CUDA graph is being captured from a stream, or makes the legacy default stream unusable."""
    status, name = ctypes.c_int(), "cuStreamIsCapturing"
    code = entry_point(name)(ctypes.c_void_p(stream), ctypes.byref(status))
    if code == _CAPTURE_IMPLICIT:
        return True
    check(code, name)
    return status.value != NOT_CAPTURING
