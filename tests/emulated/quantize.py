"""Quantisers on the host: their device headers, compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from fp8gemm.jit.render import render_source
from fp8gemm.kernels import quantize as kernels
from fp8gemm.kernels.quantize import QuantizeKernel, Quantizer
from tests.emulated import CONFIG, headers
from tests.host_compiler import compile_library

_PROGRAM = """\
#include "quantize.hpp"
#include "run.hpp"
{kernels}
extern "C" const char* emulate(uint32_t kernel, const void* params, uint32_t grid, uint32_t threads, uint32_t seed) {{
    void (*const kernels[])(const void*) = {{{names}}};
    return emulated::run(kernels[kernel], params, grid, 1, threads, seed);
}}
"""
_KERNEL = """\
#include "{header}"
namespace {name} {{
{config}
void run(const void* params) {{
    fp8gemm::{family}<Config>::run(*static_cast<const fp8gemm::QuantizeParams*>(params));
}}
}}  // namespace {name}
"""

Quantize = Callable[..., str]
"""Takes what `QuantizeKernel.bind` does, and a seed instead of the stream; says what is wrong besides the result."""


def emulated_quantizers(
    wanted: Sequence[Quantizer], directory: Path, edit: Callable[[str, str], str] = lambda path, text: text
) -> list[Quantize]:
    """Quantisers, compiled for the host; the test is skipped without a C++ compiler.

    Args:
        wanted: which.
        directory: an empty one.
        edit: what to make of a header's text, by its path below include/fp8gemm.
    """
    sources = []
    for index, quantizer in enumerate(wanted):
        found, request = CONFIG.search(render_source(quantizer.request)), quantizer.request
        assert found is not None
        sources.append(_KERNEL.format(name=f"v{index}", header=request.header, config=found[0], family=request.family))
    names = ", ".join(f"v{index}::run" for index in range(len(wanted)))
    program = _PROGRAM.format(kernels="\n".join(sources), names=names)
    options = "-std=c++20", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-unknown-pragmas", "-w"
    _, loaded = compile_library(program, directory, *options, *headers(directory, edit))
    loaded.emulate.restype = ctypes.c_char_p
    return [_quantize(loaded, index, quantizer) for index, quantizer in enumerate(wanted)]


def _quantize(library: ctypes.CDLL, index: int, quantizer: Quantizer) -> Quantize:
    kernel: Any = QuantizeKernel.__new__(QuantizeKernel)
    kernel._grid, kernel._launch = quantizer.grid, None

    def quantize(x: Tensor, codes: Tensor, scales: Tensor, *, seed: int, **others: Any) -> str:
        with patch.object(kernels, "BoundLaunch", lambda launch, arguments, stream, grid: (arguments, grid)):
            arguments, grid = kernel.bind(x, codes, scales, stream=0, **others)
        address = ctypes.c_void_p(ctypes.addressof(arguments.params))
        said: bytes = library.emulate(index, address, grid, quantizer.threads, seed)
        return said.decode()

    return quantize
