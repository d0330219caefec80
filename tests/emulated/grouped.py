"""Grouped products on the host: their device headers, compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.kernels import dense, gemm
from fp8gemm.kernels.gemm import fill_output
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend
from tests.emulated import encode_2d
from tests.emulated.dense import compiled
from tests.grouped import ContiguousCase, KGroupedCase, MaskedCase

AnyCase = ContiguousCase | MaskedCase | KGroupedCase
Multiply = Callable[[AnyCase, int, int], tuple[Tensor, str]]
"""The output for a case, as it was poisoned where nothing was written, with so many SMs and a seed; and what is wrong
besides."""


def emulated_groups(
    wanted: Sequence[tuple[GroupedProblem, TileConfig]],
    directory: Path,
    edit: Callable[[str, str], str] = lambda path, text: text,
) -> list[Multiply]:
    """Kernels of groups under configs, compiled for the host; the test is skipped without a C++ compiler.

    Args:
        wanted: the problems, of any M.
        directory: an empty one.
        edit: what to make of a header's text, by its path below include/fp8gemm.
    """
    loaded = compiled([GroupedKernel.request(*pair) for pair in wanted], directory, edit)
    return [_multiplier(loaded, index, *pair) for index, pair in enumerate(wanted)]


def _multiplier(library: ctypes.CDLL, index: int, problem: GroupedProblem, config: TileConfig) -> Multiply:
    def multiply(case: AnyCase, num_sms: int, seed: int) -> tuple[Tensor, str]:
        if isinstance(case, KGroupedCase):
            out = case.poison() if case.c is None else case.c.clone()
        else:
            out = case.poison(getattr(torch, problem.output.value))
        begins, ends = _ranges(case)
        operands = GroupedOperands(
            case.a.flatten(0, -2),
            case.scales_a,
            case.b.flatten(0, -2),
            case.scales_b,
            out.flatten(0, -2),
            0 if begins is None else begins.data_ptr(),
            ends.data_ptr(),
            rows=case.a.shape[-2],
            products=0,
        )
        kernel: Any = GroupedKernel.__new__(GroupedKernel)
        kernel.problem, kernel.config = problem, config
        kernel._max_clusters = max(num_sms // config.cluster_size, 1)
        block = ArgumentBlock()
        with patch.object(gemm, "encode_2d", encode_2d), patch.object(dense, "encode_2d", encode_2d):
            kernel._encode(operands, config, block)
        fill_output(block, operands.out, None if problem.c is Addend.NONE else operands.out)
        block.params.m, block.params.k = operands.rows, case.a.shape[-1]
        block.params.group_begins, block.params.group_ends = operands.begins, operands.ends
        address = ctypes.c_void_p(ctypes.addressof(block.params))
        grid = kernel.grid(operands.rows)
        said: bytes = library.emulate(index, address, grid, config.cluster_size, config.threads, seed)
        return out, said.decode()

    return multiply


def _ranges(case: AnyCase) -> tuple[Tensor | None, Tensor]:
    """Where groups begin and end; of masked ones how many rows each has."""
    if isinstance(case, MaskedCase):
        return None, case.counts()
    if isinstance(case, ContiguousCase):
        begins, ends = case.bounds()
        return begins, ends
    return case.offsets()[:-1], case.offsets()[1:]
