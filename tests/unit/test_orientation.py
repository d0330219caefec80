"""`tests.orientation`: what GPU tests of grouped products in the swapped orientation, in clusters, and in pieces,
rest on."""

from __future__ import annotations

import pytest

from fp8gemm.kernels import loaded
from fp8gemm.kernels.grouped import GroupedKernel
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped import GROUPINGS
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Grouping, OutputType, Problem
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.table import tables_in_force
from tests.orientation import choose_pairs, choose_pieces, choose_swapped


def test_grouped_products_are_swapped_and_single_ones_are_chosen_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    chip, tables = named_chip("h200"), tables_in_force()
    grouped = GroupedProblem(Grouping.MASKED, 8, 4096, 4096, 7168)
    single = Problem(4096, 4096, 7168)
    before = [loaded._best(each, chip, 0, True, tables) for each in (grouped, single)]
    assert all(isinstance(key[1], TileConfig) for key in before)
    choose_swapped(monkeypatch)
    swapped = loaded._best(grouped, chip, 0, True, tables)
    assert isinstance(swapped[1], SwapAbConfig) and swapped[0] == before[0][0]
    assert loaded._best(single, chip, 0, True, tables) == before[1]


@pytest.mark.parametrize("grouping", list(GROUPINGS))
def test_tiles_of_grouped_products_are_a_cluster_s(grouping: Grouping, monkeypatch: pytest.MonkeyPatch) -> None:
    chip, tables = named_chip("h200"), tables_in_force()
    choose_pairs(monkeypatch)
    output = OutputType.FLOAT32 if grouping is Grouping.COLUMNS else OutputType.BFLOAT16
    problem = GroupedProblem(grouping, 8, 4096, 576, 272, output)
    config = loaded._best(problem, chip, 0, True, tables)[1]
    assert isinstance(config, TileConfig) and config.cluster_m == 2


@pytest.mark.parametrize("grouping", [Grouping.CONTIGUOUS, Grouping.MASKED])
@pytest.mark.parametrize(("n", "k"), [(8, 112), (100, 128), (576, 256), (2112, 7168)])
def test_tiles_of_grouped_products_have_several_pieces(
    n: int, k: int, grouping: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever would be chosen: for 576x256 it came to be tiles of one piece, and faults of pieces no longer showed."""
    chip, tables = named_chip("h200"), tables_in_force()
    choose_pieces(monkeypatch)
    problem = GroupedProblem(grouping, 12, 512, n, k)
    config = loaded._best(problem, chip, 0, True, tables)[1]
    parts = dict(GroupedKernel.request(problem, config).config)
    assert 0 < int(parts["piece_of_a"]) < config.block_m
