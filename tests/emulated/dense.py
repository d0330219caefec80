"""Dense products on the host: their device headers, compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.kernels.gemm import fill_output
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Addend, Problem
from tests.cases import Case
from tests.emulated.products import EditHeader, as_it_is, compiled, maps_of_the_host, run, unloaded

Multiply = Callable[[Case, int, int], tuple[Tensor, str]]
"""The output for a case, NaN where nothing was written, with so many SMs and a seed; and what is wrong besides."""


def emulated_products(
    wanted: Sequence[tuple[Problem, TileConfig]],
    directory: Path,
    edit: EditHeader = as_it_is,
) -> list[Multiply]:
    """Kernels of problems under configs, compiled for the host; the test is skipped without a C++ compiler.

    Args:
        wanted: the problems, of any M.
        directory: an empty one.
        edit: what to make of a header's text, by its path below include/fp8gemm.
    """
    loaded = compiled([DenseKernel.request(*pair) for pair in wanted], directory, edit)
    return [_multiplier(loaded, index, *pair) for index, pair in enumerate(wanted)]


def _multiplier(library: ctypes.CDLL, index: int, problem: Problem, config: TileConfig) -> Multiply:
    def multiply(case: Case, num_sms: int, seed: int) -> tuple[Tensor, str]:
        out = torch.full((case.a.shape[0], problem.n), torch.nan, dtype=getattr(torch, problem.output.value))
        c = case.c
        if c is not None and problem.c is Addend.IN_PLACE:
            c = out.copy_(c)
        kernel, block = unloaded(DenseKernel, problem, config, num_sms), ArgumentBlock()
        with maps_of_the_host():
            kernel._encode(case.a, case.scales_a, case.b, case.scales_b, out, block)
        fill_output(block, out, c)
        block.params.m = len(out)
        if case.bias is not None:
            block.params.bias = case.bias.data_ptr()
        return out, run(library, index, kernel, block, len(out), seed)

    return multiply
