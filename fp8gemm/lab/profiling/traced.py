"""The instrumented build of a dense kernel: launched as the normal one, and its marks read back."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import torch

from fp8gemm.driver.api import call
from fp8gemm.driver.library import (
    current_context,
    get_function,
    get_global,
    load_library,
    set_max_dynamic_shared,
)
from fp8gemm.errors import DriverError
from fp8gemm.jit.build import build
from fp8gemm.jit.render import ENTRY
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.lab.profiling.trace import BUFFER_BYTES, Recording, decode
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Problem

_HEADER = "fp8gemm/kernels/dense_traced.cuh"
_BUFFER = "fp8gemm_trace"


def traced_request(problem: Problem, config: TileConfig, cta: int = 0) -> KernelRequest:
    """`kernel_request`, instrumented to record the roles of one CTA."""
    request = kernel_request(problem, config)
    return replace(
        request,
        label=f"{request.label}-traced{cta}",
        header=_HEADER,
        config=(*request.config, ("trace_cta", cta)),
    )


class TracedKernel(DenseKernel):
    """A `DenseKernel` whose launches record what the roles of one CTA do, for the last of them to be read.

    Args:
        problem, config, device_index, num_sms: as for `DenseKernel`.
        cta: which CTA of the grid.
    """

    def __init__(self, problem: Problem, config: TileConfig, *, device_index: int, num_sms: int, cta: int = 0) -> None:
        super().__init__(problem, config, device_index=device_index, num_sms=num_sms)
        self.artifact = build(traced_request(problem, config, cta))
        self._device_index = device_index
        # Its library is its own: the buffer belongs to this object.
        library = load_library(self.artifact.cubin)
        function = get_function(library, ENTRY, device_index)
        set_max_dynamic_shared(function, self._launch.dynamic_shared_bytes, device_index)
        # Large products never start ahead of the kernel before them, and so are launched in the other way.
        self._launch = replace(self._launch, function=function)
        self._plain_launch = replace(self._plain_launch, function=function)
        self._address, size = get_global(library, _BUFFER, device_index)
        if size != BUFFER_BYTES:
            raise DriverError(
                f"expected {BUFFER_BYTES} bytes of {_BUFFER}, got {size}", call="cuLibraryGetGlobal", code=0
            )

    def clear(self) -> None:
        """Forget what earlier launches recorded."""
        self._copy("cuMemsetD8", ctypes.c_void_p(self._address), ctypes.c_ubyte(0))

    def recording(self) -> Recording:
        """What the last launch since `clear` recorded; waits for it."""
        buffer = ctypes.create_string_buffer(BUFFER_BYTES)
        self._copy("cuMemcpyDtoH", buffer, ctypes.c_void_p(self._address))
        return decode(buffer.raw)

    def _copy(self, name: str, *places: Any) -> None:
        torch.cuda.synchronize(self._device_index)
        with current_context(self._device_index):
            call(name, *places, ctypes.c_size_t(BUFFER_BYTES))
        torch.cuda.synchronize(self._device_index)
