"""Tiles of a last round that two CTAs divide, on a Hopper GPU, a few CTAs less than there are tiles: of groups of rows
by their rows, of single products by their columns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.config import Tile
from fp8gemm.tuning.problem import OutputType, Problem
from tests import cases
from tests.calls import same_bits
from tests.gpu.faults.support import launch, make_kernels, nans
from tests.grouped import ContiguousCase, MaskedCase, contiguous_case, masked_case
from tests.orientation import choose_tile

ROWS, TILES_M = (701, 0, 130, 64, 333), 12
"""Of groups, and rows of tiles that these have: of some there is no second half, or a part of one. Where groups lie one
behind the other they begin inside a piece of scales."""
REPEATS = 20


def make(layout: str, n: int, seed: int, device: torch.device) -> MaskedCase | ContiguousCase:
    if layout == "masked":
        return masked_case(ROWS, 1024, n, 2560, seed=seed, device=device)
    return contiguous_case(list(enumerate(ROWS)), n, 2560, seed=seed, device=device)


def multiply(case: MaskedCase | ContiguousCase) -> Tensor:
    """The product into an output that is poisoned where a row is to be written."""
    out = case.poison()
    if isinstance(case, MaskedCase):
        return fp8gemm.gemm_masked(*case.operands, case.counts(), out=out)
    return fp8gemm.gemm_grouped(*case.operands, offsets=case.offsets(), out=out)


@pytest.mark.parametrize("n", [576, 577])
@pytest.mark.parametrize("block_n", [128, 192, 256])
@pytest.mark.parametrize("layout", ["masked", "contiguous"])
def test_the_bits_are_those_of_a_single_round(layout, block_n, n, device, seed, monkeypatch):
    choose_tile(monkeypatch, Tile(128, block_n))
    case = make(layout, n, seed, device)
    whole = multiply(case)
    case.check(whole)
    tiles = TILES_M * -(-n // block_n)
    for left in (1, 2, 7, tiles // 3, tiles // 3 + 1):
        with settings.scope(num_sms=tiles - left):
            for _ in range(REPEATS):
                assert same_bits(multiply(case), whole), f"{case}, {left} of {tiles} tiles left over"


@pytest.mark.parametrize("output", [OutputType.BFLOAT16, OutputType.FLOAT16], ids=lambda output: output.value)
@pytest.mark.parametrize("n", [576, 704, 768])
def test_columns_of_a_tile_that_two_ctas_divide(n, output, device, seed):
    """Of the last tile's columns the right half has none, a part, or all."""
    problem = Problem(1500, n, 2576, output)
    config = labelled_config("128x256-s4", problem)
    case = cases.signed(problem.m, n, problem.k, seed=seed, device=device)
    (kernel,) = make_kernels([(problem, config)], device)
    whole = launch(kernel, case, nans(problem, device))
    case.check(whole).raise_if_failed(case)
    tiles = TILES_M * -(-n // 256)
    for left in (1, 2, 7, tiles // 3, tiles // 3 + 1):
        (kernel,) = make_kernels([(problem, config)], device, num_sms=tiles - left)
        for _ in range(REPEATS):
            out = launch(kernel, case, nans(problem, device))
            assert same_bits(out, whole), f"{case}, {left} of {tiles} tiles left over"
