"""Grouped products on the host: their device headers, compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.kernels.gemm import fill_output
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.tuning.config import WAVE_ROWS, TileConfig
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend
from tests.emulated.products import EditHeader, as_it_is, compiled, maps_of_the_host, run, unloaded
from tests.grouped import ContiguousCase, KGroupedCase, MaskedCase

AnyCase = ContiguousCase | MaskedCase | KGroupedCase
Multiply = Callable[[AnyCase, int, int], tuple[Tensor, str]]
"""The output for a case, as it was poisoned where nothing was written, with so many SMs and a seed; and what is wrong
besides."""


def emulated_groups(
    wanted: Sequence[tuple[GroupedProblem, TileConfig]], directory: Path, edit: EditHeader = as_it_is
) -> list[Multiply]:
    """`tests.emulated.dense.emulated_products`, of groups."""
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
        kernel, block = unloaded(GroupedKernel, problem, config, num_sms), ArgumentBlock()
        with maps_of_the_host():
            kernel._encode(operands, config, block)
        fill_output(block, operands.out, None if problem.c is Addend.NONE else operands.out)
        block.params.m, block.params.k = operands.rows, case.a.shape[-1]
        block.params.group_begins, block.params.group_ends = operands.begins, operands.ends
        whole = operands.rows % WAVE_ROWS == 0  # of a part that a group's rows end in lanes add the rows
        return out, run(library, index, kernel, block, operands.rows, seed, compares_boxes=whole)

    return multiply


def _ranges(case: AnyCase) -> tuple[Tensor | None, Tensor]:
    """Where groups begin and end; of masked ones how many rows each has."""
    if isinstance(case, MaskedCase):
        return None, case.counts()
    if isinstance(case, ContiguousCase):
        begins, ends = case.bounds()
        return begins, ends
    return case.offsets()[:-1], case.offsets()[1:]
