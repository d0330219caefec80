"""Kernels of routing on the host: their device headers, compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import quantize, routing
from fp8gemm.kernels.quantize import QuantizeKernel, Quantizer
from fp8gemm.kernels.routing import RoutingKernel, threads_of
from tests.emulated import CONFIG, headers
from tests.host_compiler import compile_library

_PROGRAM = """\
#include "routing.hpp"
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
    using Kernel = fp8gemm::{family}<Config>;
    Kernel::run(*static_cast<const Kernel::Params*>(params));
}}
}}  // namespace {name}
"""

Run = Callable[..., str]
"""Takes the name of a method of the kernel's that binds, what that takes, and a seed instead of the stream; says what
is wrong besides the result."""


def emulated_routing(
    wanted: Sequence[KernelRequest | Quantizer],
    directory: Path,
    edit: Callable[[str, str], str] = lambda path, text: text,
) -> list[Run]:
    """Kernels of routing, compiled for the host; the test is skipped without a C++ compiler.

    Args:
        wanted: which.
        directory: an empty one.
        edit: what to make of a header's text, by its path below include/fp8gemm.
    """
    sources = []
    for index, each in enumerate(wanted):
        request = each.request if isinstance(each, Quantizer) else each
        found = CONFIG.search(render_source(request))
        assert found is not None
        sources.append(_KERNEL.format(name=f"v{index}", header=request.header, config=found[0], family=request.family))
    names = ", ".join(f"v{index}::run" for index in range(len(wanted)))
    program = _PROGRAM.format(kernels="\n".join(sources), names=names)
    options = "-std=c++20", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-unknown-pragmas", "-w"
    _, loaded = compile_library(program, directory, *options, *headers(directory, edit))
    loaded.emulate.restype = ctypes.c_char_p
    return [_run(loaded, index, each) for index, each in enumerate(wanted)]


def _run(library: ctypes.CDLL, index: int, each: KernelRequest | Quantizer) -> Run:
    kernel: Any
    if isinstance(each, Quantizer):
        kernel, threads = QuantizeKernel.__new__(QuantizeKernel), each.threads
        kernel._grid = each.grid
    else:
        kernel, threads = RoutingKernel.__new__(RoutingKernel), threads_of(each)
    kernel._launch = None

    def bound(launch: None, arguments: Any, stream: int, grid: int) -> tuple[Any, int]:
        return arguments, grid

    def run(bind: str, *operands: Any, seed: int) -> str:
        with patch.object(quantize, "BoundLaunch", bound), patch.object(routing, "BoundLaunch", bound):
            arguments, grid = getattr(kernel, bind)(*operands, stream=0)
        address = ctypes.c_void_p(ctypes.addressof(arguments.params))
        said: bytes = library.emulate(index, address, grid, threads, seed)
        return said.decode()

    return run
