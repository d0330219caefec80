"""The host's side of ``include/fp8gemm/kernels/group_ranges.cuh``: from the group of each row to ranges of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8gemm.driver.arguments import Arguments, GroupRangesParams
from fp8gemm.driver.launch import BoundLaunch, LaunchConfig
from fp8gemm.jit.kernel import load
from fp8gemm.jit.request import KernelRequest

if TYPE_CHECKING:
    from torch import Tensor

_THREADS = 256

GROUP_RANGES = KernelRequest(
    label="group-ranges",
    header="fp8gemm/kernels/group_ranges.cuh",
    family="FindGroupRanges",
    config=(("threads", _THREADS),),
)
"""What the JIT builds; there is only one."""


class GroupRangesKernel:
    """The kernel, loaded on one GPU and ready to launch; threads may share it.

    Args:
        device_index: the GPU.
        allow_compile: whether it may be compiled if it is in no cache.
        programmatic: launch it as a programmatic dependent of the kernel before it in the stream.

    Raises:
        CacheMissError, CompileError, DriverError: as `fp8gemm.jit.kernel.load` does.
    """

    def __init__(self, *, device_index: int, allow_compile: bool = True, programmatic: bool = False) -> None:
        loaded = load(GROUP_RANGES, device_index, 0, allow_compile=allow_compile)
        self._launch = LaunchConfig(
            function=loaded.function,
            device_index=device_index,
            grid_x=1,
            threads=_THREADS,
            programmatic=programmatic,
        )

    def bind(self, indices: Tensor, ranges: Tensor, *, stream: int) -> BoundLaunch:
        """The launch for checked operands; it holds their addresses, and none of them.

        Args:
            indices: (rows,) int32, contiguous, rows > 0.
            ranges: (2, groups) int32, contiguous, zeros: begins and ends.
            stream: the CUstream.
        """
        arguments = Arguments(GroupRangesParams)
        params = arguments.params
        groups = ranges.shape[1]
        params.indices, params.begins, params.ends = indices.data_ptr(), ranges.data_ptr(), ranges[1].data_ptr()
        params.rows, params.groups = indices.shape[0], groups
        return BoundLaunch(self._launch, arguments, stream, -(-indices.shape[0] // _THREADS))
