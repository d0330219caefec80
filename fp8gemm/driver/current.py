"""The GPU and the stream that torch launches on now, and launches with another GPU as the current one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.errors import UnsupportedDeviceError


def _needs_cuda(*_: object) -> int:
    raise UnsupportedDeviceError("expected a torch built for CUDA, got one without")


# NOTE: torch.cuda's own functions make objects and look whether CUDA is initialised, which takes longer than a launch.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _needs_cuda)
"""The CUstream that torch launches on now on a GPU."""

current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _needs_cuda)
"""The GPU that is current in this thread."""


current_is_captured: Callable[[], int] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", _needs_cuda)
"""Whether a CUDA graph is made of what is launched now on the current GPU, in less time than the driver is asked."""


def launch_on(device_index: int, bound: BoundLaunch) -> None:
    """Launch with its GPU as the current one."""
    if current_device() == device_index:
        bound()
    else:
        with torch.cuda.device(device_index):
            bound()


def on_device(device_index: int) -> AbstractContextManager[object]:
    """Makes a GPU the current one for a block."""
    return nullcontext() if current_device() == device_index else torch.cuda.device(device_index)
