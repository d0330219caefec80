"""Operands of single, grouped and K-grouped products, ready to be launched very often: see `tests.launches`.

All data is exact, so that no element may differ from the reference. Everything but the launches works on any device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fp8gemm.kernels.grouped import GroupedOperands
from fp8gemm.reference import (
    gemm_grouped_reference,
    gemm_k_grouped_reference,
    gemm_masked_reference,
    gemm_reference,
)
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Problem
from tests import cases
from tests.grouped import contiguous_case, k_grouped_case, masked_case
from tests.launches import Launch, Output, Prepared

Device = torch.device | str


def torch_dtype(kind: OutputType | Addend) -> torch.dtype:
    """Of an output, or of an addend that there is."""
    dtype: torch.dtype = getattr(torch, kind.type_name if isinstance(kind, Addend) else kind.value)
    return dtype


def prepare_dense(problem: Problem, seed: int, device: Device) -> Prepared:
    """A single product, with C and bias if the problem has them."""
    addends = {"c": problem.c, "bias": problem.bias}
    terms: dict[str, Any] = {name: torch_dtype(kind) for name, kind in addends.items() if kind is not Addend.NONE}
    case = cases.small_integers(
        problem.m, problem.n, problem.k, seed=seed, device=device, scaling=problem.scaling, **terms
    )
    right = gemm_reference(*case.operands, **case.epilogue, out_dtype=torch_dtype(problem.output))

    def bind(kernel: Any, outs: Sequence[Tensor], stream: int) -> Launch:
        launch: Launch = kernel.bind(*case.operands, out=outs[0], stream=stream, **case.epilogue)
        return launch

    before = case.c if case.c is not None and problem.c is Addend.IN_PLACE else torch.full_like(right, math.nan)
    return Prepared((Output(before, right),), bind)


def prepare_grouped(
    problem: GroupedProblem, sizes: Sequence[int], most_rows: int, seed: int, device: Device
) -> Prepared:
    """Groups of rows of these sizes, contiguous ones in any order and with rows of no group between them.

    Args:
        problem: of contiguous or masked groups, as many as there are sizes.
        sizes: rows of each group.
        most_rows: room for rows of each group, where groups are masked.
        seed: of the data and of the order.
        device: where operands are.
    """
    if problem.grouping is Grouping.CONTIGUOUS:
        return _prepare_contiguous(problem, sizes, seed, device)
    case = masked_case(sizes, most_rows, problem.n, problem.k, seed=seed, device=device, maker=cases.small_integers)
    counts, before = case.counts(), case.poison(torch_dtype(problem.output))
    right = gemm_masked_reference(*case.operands, counts, out=before.clone())
    output = Output(before.flatten(0, 1), right.flatten(0, 1))
    a, b = case.a.flatten(0, 1), case.b.flatten(0, 1)
    operands = GroupedOperands(
        a, case.scales_a, b, case.scales_b, output.before, 0, counts.data_ptr(), most_rows, products=0
    )
    return _prepared(operands, output, counts)


def _prepare_contiguous(problem: GroupedProblem, sizes: Sequence[int], seed: int, device: Device) -> Prepared:
    draw = random.Random(seed)
    runs = [(-1, draw.randrange(1, 9))]
    for group in draw.sample(range(len(sizes)), len(sizes)):
        runs += [(group, sizes[group]), (-1, draw.choice((0, 3, 70)))]
    case = contiguous_case(
        runs, problem.n, problem.k, seed=seed, device=device, maker=cases.small_integers, groups=len(sizes)
    )
    bounds, before = case.bounds(), case.poison(torch_dtype(problem.output))
    output = Output(before, gemm_grouped_reference(*case.operands, offsets=bounds, out=before.clone()))
    operands = GroupedOperands(
        case.a,
        case.scales_a,
        case.b.flatten(0, 1),
        case.scales_b,
        before,
        bounds.data_ptr(),
        bounds[1].data_ptr(),
        case.a.shape[0],
        products=0,
    )
    return _prepared(operands, output, bounds)


def prepare_columns(problem: GroupedProblem, sizes: Sequence[int], seed: int, device: Device) -> Prepared:
    """Groups of so many columns, added to a C that is the output before if the problem has one."""
    adds = problem.c is not Addend.NONE
    case = k_grouped_case(sizes, problem.m, problem.n, seed=seed, device=device, maker=cases.small_integers, c=adds)
    offsets = case.offsets()
    before = case.poison() if case.c is None else case.c
    right = gemm_k_grouped_reference(*case.operands, offsets, c=case.c)
    output = Output(before.flatten(0, 1), right.flatten(0, 1))
    operands = GroupedOperands(
        *case.operands, output.before, offsets.data_ptr(), offsets[1:].data_ptr(), problem.m, products=0
    )
    return _prepared(operands, output, offsets)


def _prepared(operands: GroupedOperands, output: Output, ranges: Tensor) -> Prepared:
    """With the tensor that the operands have the address of, which lives as long as the launches do."""

    def bind(kernel: Any, outs: Sequence[Tensor], stream: int, held: Tensor = ranges) -> Launch:
        launch: Launch = kernel.bind(replace(operands, out=outs[0]), stream)
        return launch

    return Prepared((output,), bind)
