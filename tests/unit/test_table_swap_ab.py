"""Tuned tables and the swapped orientation: an entry names one config by its whole label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import FEW_ROWS, Problem
from fp8gemm.tuning.select import ranked_configs, select
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.table import NO_TABLES, Entry, Table, Tables, read_table, tile_of, write_table

H200 = named_chip("h200")
N, K = 7168, 2048


def swapped_configs(problem: Problem) -> list[SwapAbConfig]:
    return [config for config in ranked_configs(problem, H200, NO_TABLES) if isinstance(config, SwapAbConfig)]


def table_of(problem: Problem, config: SwapAbConfig) -> Table:
    shape = problem.m, problem.n, problem.k
    entry = Entry(*shape, tile_of(config), 12.5, static_weights=problem.static_weights)
    return Table("NVIDIA H200", "h200", 132, "2026-01-01", "by hand", (entry,))


def test_a_label_names_one_candidate() -> None:
    """Depth included: it is a choice, and no longer what fits."""
    for m in FEW_ROWS:
        swapped = swapped_configs(Problem(m, N, K))
        assert len({tile_of(config) for config in swapped}) == len(swapped)
        assert len({replace(config, stages=2) for config in swapped}) < len(swapped)
    assert tile_of(SwapAbConfig(8, 16, 4, warpgroups_k=2)) == "swap8x16-k2-d4-c1"


@pytest.mark.parametrize("static", [False, True])
def test_an_entry_is_honoured_for_its_kind_of_weight(static: bool, tmp_path: Path) -> None:
    problem = Problem(20, N, K, static_weights=static)
    slow = swapped_configs(problem)[-1]
    path = tmp_path / "table.json"
    write_table(path, table_of(problem, slow))
    (found,) = read_table(path).entries
    assert (found.tile, found.static_weights) == (slow.label, static)
    with settings.scope(tables=[path]):
        for m in (17, 20, 24):
            assert select(m, N, K, static_weights=static) == slow
        for m in (16, 25):
            assert select(m, N, K, static_weights=static) != slow
        assert select(20, N, K, static_weights=not static) != slow
        assert select(20, N, K, batch_invariant=True) != slow


def test_an_entry_that_names_no_candidate_is_passed_over() -> None:
    problem = Problem(20, N, K)
    ranked, swapped = ranked_configs(problem, H200, NO_TABLES), swapped_configs(problem)
    deepest = max(swapped, key=lambda config: config.stages)
    for stale in (replace(deepest, stages=deepest.stages + 1), replace(deepest, block_m=16)):
        assert stale not in ranked
        assert ranked_configs(problem, H200, Tables([table_of(problem, stale)])) == ranked
        both = Tables([table_of(problem, stale), table_of(problem, swapped[-1])])
        assert ranked_configs(problem, H200, both)[0] == swapped[-1]
