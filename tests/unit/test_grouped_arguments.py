"""What a grouped kernel is launched with: the boxes of A and B that its argument block describes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.kernels import dense, gemm
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_config import pair_candidates, tile_candidates
from fp8gemm.tuning.grouped_problem import GroupedProblem, grouped_problem
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Grouping
from tests.emulated.products import unloaded
from tests.grouped import masked_case

H200 = named_chip("h200")
GROUPS, ROOM, K = 2, 40, 272


def boxes(problem: GroupedProblem, config: TileConfig, monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, Any]]:
    """The maps that are encoded, by their places."""
    maps: dict[int, dict[str, Any]] = {}
    for module in (gemm, dense):
        monkeypatch.setattr(module, "encode_2d", lambda place, **options: maps.update({place: options}))
    case = masked_case((3, 40), ROOM, problem.n, K, seed=0)
    out = case.poison()
    rows = case.a.flatten(0, 1), case.scales_a, case.b.flatten(0, 1), case.scales_b, out.flatten(0, 1)
    kernel, block = unloaded(GroupedKernel, problem, config, H200.num_sms), ArgumentBlock()
    kernel._encode(GroupedOperands(*rows, 0, 0, rows=ROOM, products=0), config, block)
    return {getattr(block, name) - block.tensor_map_a: maps.get(getattr(block, name)) for name in NAMES}


NAMES = ("tensor_map_a", "tensor_map_b", "tensor_map_a_tail", "tensor_map_b_tail")


@pytest.mark.parametrize("n", [576, 4096, 2112, 100, 136, 1000])
def test_kernels_are_told_of_the_pieces_that_maps_have(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns end where a piece does."""
    problem = grouped_problem(Grouping.MASKED, GROUPS, 150, n, K)
    configs = [*tile_candidates(problem, H200), *pair_candidates(problem, H200)]
    for config in configs:
        told = dict(GroupedKernel.request(problem, config).config)
        a, b, a_tail, b_tail = boxes(problem, config, monkeypatch).values()
        assert a and b and (a["box_outer"], b["box_outer"]) == (config.block_m, config.block_n // config.cluster_m)
        if config.block_m < 128:
            assert told["piece_of_a"] == told["piece_of_b"] == 0 and a_tail is None and b_tail is None
            continue
        assert told["piece_of_a"] == 64 and a_tail == {**a, "box_outer": 64}
        common = math.gcd(n, config.block_n)
        if config.cluster_m > 1 or common not in (64, 128) or common == config.block_n:
            assert told["piece_of_b"] == 0 and b_tail is None
        else:
            assert told["piece_of_b"] == common and b_tail == {**b, "box_outer": common}


def test_groups_of_columns_have_whole_boxes() -> None:
    problem = grouped_problem(Grouping.COLUMNS, GROUPS, 200, 136, K)
    for config in tile_candidates(problem, H200):
        told = dict(GroupedKernel.request(problem, config).config)
        assert told["piece_of_a"] == told["piece_of_b"] == 0
