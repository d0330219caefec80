"""What compute-sanitizer is wrong about: the messages that right kernels get, and the smallest kernel that gets one."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from fp8gemm.driver.arguments import Arguments  # noqa: E402
from fp8gemm.driver.launch import LaunchConfig, launch  # noqa: E402
from fp8gemm.driver.library import get_function, load_library  # noqa: E402
from fp8gemm.jit.compiler import CompileResult, compile_options, compile_source  # noqa: E402
from fp8gemm.jit.headers import include_dir  # noqa: E402
from fp8gemm.jit.render import ENTRY  # noqa: E402

MISJUDGED, JUDGED = "one-arrives", "every-lane-arrives"
"""The kernel of sanitize_limits.cu in two forms: racecheck is wrong about the first and right about the second."""

_LANES = 32


class _Params(ctypes.Structure):
    """What the kernel takes."""

    _fields_ = [("out", ctypes.c_void_p)]


@dataclass(frozen=True)
class Limitation:
    """A race that is none.

    Attributes:
        reads, writes: patterns of places. Every access that the message names must match its own.
        reason: why it is none.
    """

    reads: str
    writes: str
    reason: str

    def explains(self, message: str) -> bool:
        """Whether it is all that a message of racecheck is about."""
        accesses = re.findall(r"(Read|Write) access at (.*)", message)
        return bool(accesses) and all(
            re.search(self.reads if kind == "Read" else self.writes, place) for kind, place in accesses
        )


CLIPPED_STORE = Limitation(
    reads=r"copy_rows.* in clipped_store\.cuh:\d+",
    writes=r"store_shared_pair.* in memory\.cuh:\d+",
    reason="the store warp's lanes read what consumers staged, after a lane of each of their warps has arrived for "
    "all; racecheck does not know that __syncwarp orders what the others wrote before that arrival, as the smallest "
    "such kernel shows (scripts/sanitize_limits.cu)",
)


def compile_reproducer(form: str) -> CompileResult:
    """The kernel in one of its forms."""
    chosen = f"constexpr bool kEveryLaneArrives = {str(form == JUDGED).lower()};\n"
    source, arch = chosen + (HERE / "sanitize_limits.cu").read_text(), "sm_90a"
    return compile_source(source, label=form, options=compile_options(arch), arch=arch, include_dir=include_dir())


def reproduce(form: str, upload: Callable[[Tensor], Tensor]) -> bool:
    """One launch of the kernel in one of its forms; whether the result is right.

    Args:
        upload: brings a tensor to the GPU.
    """
    out = upload(torch.zeros(_LANES, dtype=torch.int32))
    function = get_function(load_library(compile_reproducer(form).cubin), ENTRY, 0)
    arguments = Arguments(_Params)
    arguments.params.out = out.data_ptr()
    config = LaunchConfig(function=function, device_index=0, grid_x=1, threads=2 * _LANES)
    launch(config, arguments, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return bool(out.tolist() == [(lane ^ 1) + 1 for lane in range(_LANES)])
