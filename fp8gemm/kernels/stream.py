"""The host's side of ``include/fp8gemm/kernels/stream.cuh``: the least time that reading a weight once can take.

The benchmark's yardstick: it computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.driver.device import hopper_info
from fp8gemm.driver.launch import LaunchConfig, launch
from fp8gemm.errors import InputError
from fp8gemm.jit.kernel import load
from fp8gemm.jit.request import KernelRequest

if TYPE_CHECKING:
    from torch import Tensor

_THREADS = 32
_ALIGNMENT = 16
_LINE_BYTES = 128
_BARRIER_BYTES = 8


@dataclass(frozen=True)
class StreamConfig:
    """How a weight is streamed. By default two CTAs fit on an SM: the next kernel's can start beside this one's.

    Attributes:
        stages: copies in flight per CTA.
        stage_bytes: bytes of one copy, whole cache lines of 128.
        ctas_per_sm: CTAs in the grid for each SM of the GPU.

    Raises:
        InputError: a number is outside its range.
    """

    stages: int = 9
    stage_bytes: int = 12 * 1024
    ctas_per_sm: int = 1

    def __post_init__(self) -> None:
        if self.stages < 1 or self.ctas_per_sm < 1:
            raise InputError(f"stages, ctas_per_sm: expected at least 1, got {self.stages} and {self.ctas_per_sm}.")
        if self.stage_bytes < _LINE_BYTES or self.stage_bytes % _LINE_BYTES:
            raise InputError(f"stage_bytes: expected a multiple of {_LINE_BYTES}, got {self.stage_bytes}.")

    @property
    def shared_bytes(self) -> int:
        """Of one CTA: the stages, and a barrier for each, in whole cache lines."""
        return -(-self.stages * (self.stage_bytes + _BARRIER_BYTES) // _LINE_BYTES) * _LINE_BYTES


def kernel_request(n: int, k: int, config: StreamConfig) -> KernelRequest:
    """What the JIT must build to stream an (N, K) weight; K is a multiple of 16."""
    return KernelRequest(
        label=f"stream-n{n}-k{k}-s{config.stages}x{config.stage_bytes}",
        header="fp8gemm/kernels/stream.cuh",
        family="Stream",
        config=(
            ("n", n),
            ("k", k),
            ("stages", config.stages),
            ("stage_bytes", config.stage_bytes),
            ("shared_bytes", config.shared_bytes),
        ),
    )


class StreamKernel:
    """Reads an (N, K) weight of one byte per element once, on all SMs, loaded on one GPU and ready to launch.

    Args:
        n, k: the weight's shape.
        device_index: the GPU.
        config: how it is streamed.
        programmatic: launch it as a programmatic dependent of the kernel before it in the stream; then it reads the
            weight before that one has ended.

    Raises:
        CompileError, DriverError: as `fp8gemm.jit.kernel.load` does.
        UnsupportedDeviceError: the GPU is not Hopper.
    """

    def __init__(
        self, n: int, k: int, *, device_index: int, config: StreamConfig | None = None, programmatic: bool = False
    ) -> None:
        config = config or StreamConfig()
        self._shape = (n, k)
        loaded = load(kernel_request(n, k, config), device_index, config.shared_bytes)
        self._launch = LaunchConfig(
            function=loaded.function,
            device_index=device_index,
            grid_x=config.ctas_per_sm * hopper_info(device_index).num_sms,
            threads=_THREADS,
            dynamic_shared_bytes=config.shared_bytes,
            programmatic=programmatic,
        )

    def __call__(self, b: Tensor, stream: int) -> None:
        """Read ``b``, (N, K) float8_e4m3fn, contiguous and 16-byte aligned, on a CUstream.

        Raises:
            InputError: ``b`` is not as described.
        """
        if b.shape != self._shape or b.element_size() != 1 or not b.is_contiguous() or b.data_ptr() % _ALIGNMENT:
            raise InputError(
                f"b: expected {self._shape}, one byte per element, contiguous and {_ALIGNMENT}-byte aligned, "
                f"got {tuple(b.shape)} {b.dtype}, strides {b.stride()}, address {b.data_ptr():#x}"
            )
        arguments = ArgumentBlock()
        arguments.params.b = b.data_ptr()
        launch(self._launch, arguments, stream)
