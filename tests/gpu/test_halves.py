"""Tiles of a last round that two CTAs divide, on a Hopper GPU: groups of rows, a few CTAs less than they have tiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.tuning.config import Tile
from tests.calls import same_bits
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
