"""Products on the host: their device headers, compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import dense, gemm
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.kernels.gemm import fill_output
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Addend, Problem
from tests.cases import Case
from tests.emulated import CONFIG, encode_2d, headers
from tests.host_compiler import compile_library

_PROGRAM = """\
#include "ptx.hpp"
#include "run.hpp"
#include "shuffles.hpp"
#include "fp8gemm/kernels/grouped.cuh"
{kernels}
extern "C" const char* emulate(uint32_t kernel, const void* params, uint32_t grid, uint32_t cluster, uint32_t threads,
                               uint32_t seed) {{
    void (*const kernels[])(const void*) = {{{names}}};
    return emulated::run(kernels[kernel], params, grid, cluster, threads, seed);
}}
"""
_KERNEL = """\
namespace {name} {{
{config}
void run(const void* params) {{ fp8gemm::{family}<Config>::run(*static_cast<const fp8gemm::KernelParams*>(params)); }}
}}  // namespace {name}
"""
Multiply = Callable[[Case, int, int], tuple[Tensor, str]]
"""The output for a case, NaN where nothing was written, with so many SMs and a seed; and what is wrong besides."""


def emulated_products(
    wanted: Sequence[tuple[Problem, TileConfig]],
    directory: Path,
    edit: Callable[[str, str], str] = lambda path, text: text,
) -> list[Multiply]:
    """Kernels of problems under configs, compiled for the host; the test is skipped without a C++ compiler.

    Args:
        wanted: the problems, of any M.
        directory: an empty one.
        edit: what to make of a header's text, by its path below include/fp8gemm.
    """
    loaded = compiled([DenseKernel.request(*pair) for pair in wanted], directory, edit)
    return [_multiplier(loaded, index, *pair) for index, pair in enumerate(wanted)]


def compiled(
    requests: Sequence[KernelRequest], directory: Path, edit: Callable[[str, str], str] = lambda path, text: text
) -> ctypes.CDLL:
    """Kernels of the ordinary orientation, of one product or of groups, for the host: `emulate` takes the index of one.
    The test is skipped without a C++ compiler."""
    places = headers(directory, edit)
    kernels = []
    for index, request in enumerate(requests):
        found = CONFIG.search(render_source(request))
        assert found is not None
        kernels.append(_KERNEL.format(name=f"v{index}", config=found[0], family=request.family))
    names = ", ".join(f"v{index}::run" for index in range(len(requests)))
    program = _PROGRAM.format(kernels="\n".join(kernels), names=names)
    options = "-std=c++20", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-w"
    _, loaded = compile_library(program, directory, *options, *places)
    loaded.emulate.restype = ctypes.c_char_p
    return loaded


def _multiplier(library: ctypes.CDLL, index: int, problem: Problem, config: TileConfig) -> Multiply:
    def multiply(case: Case, num_sms: int, seed: int) -> tuple[Tensor, str]:
        out = torch.full((case.a.shape[0], problem.n), torch.nan, dtype=getattr(torch, problem.output.value))
        c = case.c
        if c is not None and problem.c is Addend.IN_PLACE:
            c = out.copy_(c)
        kernel: Any = DenseKernel.__new__(DenseKernel)
        kernel.problem, kernel.config = problem, config
        kernel._max_clusters = max(num_sms // config.cluster_size, 1)
        block = ArgumentBlock()
        with patch.object(gemm, "encode_2d", encode_2d), patch.object(dense, "encode_2d", encode_2d):
            kernel._encode(case.a, case.scales_a, case.b, case.scales_b, out, block)
        fill_output(block, out, c)
        block.params.m = len(out)
        if case.bias is not None:
            block.params.bias = case.bias.data_ptr()
        address = ctypes.c_void_p(ctypes.addressof(block.params))
        said: bytes = library.emulate(index, address, kernel.grid(len(out)), config.cluster_size, config.threads, seed)
        return out, said.decode()

    return multiply
