"""Choosing configs for grouped products: what is considered is legal and fits, and a choice follows the problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8gemm.errors import InputError
from fp8gemm.tuning import hopper, swap_ab
from fp8gemm.tuning.config import Tile, TileConfig, violations
from fp8gemm.tuning.grouped import grouped_config_by_m, ranked_grouped, select_grouped
from fp8gemm.tuning.grouped_config import grouped_shared_bytes, scales_of_box, swapped_resident_ctas
from fp8gemm.tuning.grouped_problem import NOMINAL_K, GroupedProblem, counted_rows_of_group, grouped_problem
from fp8gemm.tuning.problem import (
    Addend,
    Grouping,
    OutputType,
    Scaling,
    StoreKind,
    counted_between,
)
from fp8gemm.tuning.select import Config, invariant_wave_cols
from fp8gemm.tuning.swap_ab import SwapAbConfig

CHIP = hopper.CHIPS["h200"]
CONTIGUOUS, MASKED, COLUMNS = Grouping.CONTIGUOUS, Grouping.MASKED, Grouping.COLUMNS
ROWS = (CONTIGUOUS, MASKED)
SHARED_COLUMNS = Tile(128, 192, cluster_m=2)
LAYERS = [(4096, 7168), (7168, 2048), (3072, 2048), (2048, 768), (2112, 7168)]
"""N and K of experts."""

problems = st.builds(
    GroupedProblem,
    st.sampled_from([CONTIGUOUS, MASKED, COLUMNS]),
    st.sampled_from([1, 2, 6, 8, 32, 128, 256, 1024]),
    st.one_of(st.integers(1, 80), st.integers(1, 9000)),
    st.integers(1, 300).map(lambda n: 24 * n),
    st.integers(1, 500).map(lambda k: 16 * k),
    st.sampled_from(OutputType),
    st.sampled_from(StoreKind),
    batch_invariant=st.booleans(),
).map(lambda each: replace(each, output=OutputType.FLOAT32, k=NOMINAL_K) if each.grouping is COLUMNS else each)


def faults_of(problem: GroupedProblem, config: Config) -> list[str]:
    faults = []
    if grouped_shared_bytes(problem, config) > hopper.SHARED_BYTES_PER_CTA:
        faults.append("too much shared memory")
    if isinstance(config, SwapAbConfig):
        faults += swap_ab.violations(config, problem.k)
        faults += ["K divided among CTAs"] if config.split_k > 1 else []
        faults += ["swapped"] if problem.grouping is COLUMNS or problem.batch_invariant else []
        of_sm = swapped_resident_ctas(problem, config) * config.threads
        faults += ["more threads than an SM holds"] if of_sm > hopper.THREADS_PER_SM else []
        return faults
    faults += violations(config, problem.store, problem.output, problem.scaling)
    faults += ["too large a box of scales"] if scales_of_box(problem, config) > hopper.MAX_BOX_ROWS else []
    if config.warpgroups_k > 1 and (
        problem.grouping is COLUMNS or (problem.grouping is MASKED and -(-problem.k // 128) % config.warpgroups_k)
    ):
        faults.append("a K block past the end of K is another group's")
    return faults


@settings(max_examples=60, deadline=None)
@given(problem=problems)
def test_whatever_is_considered_is_legal_and_fits(problem: GroupedProblem) -> None:
    ranked = ranked_grouped(problem, CHIP)
    faults = {config: found for config in ranked if (found := faults_of(problem, config))}
    assert ranked and faults == {} and len(set(ranked)) == len(ranked)
    assert select_grouped(problem, CHIP) == ranked[0]


@settings(max_examples=40, deadline=None)
@given(problem=problems)
def test_a_choice_follows_from_the_problem_alone(problem: GroupedProblem) -> None:
    """Not from calls before it, nor from what no kernel depends on."""
    from fp8gemm.tuning import grouped

    first = ranked_grouped(problem, CHIP)
    grouped._ranked.cache_clear()
    assert ranked_grouped(replace(problem), CHIP) == first


@pytest.mark.parametrize("grouping", ROWS)
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_few_rows_take_the_swapped_orientation_and_many_the_ordinary(n: int, k: int, grouping: Grouping) -> None:
    for groups in (6, 32, 256):
        for m, swaps in ((1, True), (4, True), (512, False), (8192, False)):
            config = select_grouped(grouped_problem(grouping, groups, m, n, k), CHIP)
            assert isinstance(config, SwapAbConfig) == swaps, (groups, m, config)


@pytest.mark.parametrize("grouping", ROWS)
@pytest.mark.parametrize(("n", "k"), LAYERS[:2])
def test_the_step_function_is_the_choice_and_has_few_steps(n: int, k: int, grouping: Grouping) -> None:
    problem = grouped_problem(grouping, 32, 4096, n, k)
    steps = grouped_config_by_m(problem, CHIP)
    lasts = [last for last, _ in steps]
    assert lasts == sorted(set(lasts)) and lasts[-1] >= problem.m
    for m in (1, 2, 3, 4, 5, 8, 9, 17, 33, 63, 64, 65, 100, 128, 129, 192, 500, 1024, 1025, 4095, 4096):
        expected = next(config for last, config in steps if m <= last)
        assert select_grouped(replace(problem, m=m), CHIP) == expected, m
    assert len({config for _, config in steps}) <= 16


@pytest.mark.parametrize("grouping", ROWS)
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_a_batch_invariant_choice_adds_up_as_the_dense_product_does(n: int, k: int, grouping: Grouping) -> None:
    width = invariant_wave_cols(n, k, Scaling.BLOCK, CHIP)
    for m in (1, 100, 5000):
        for config in ranked_grouped(grouped_problem(grouping, 8, m, n, k, batch_invariant=True), CHIP):
            assert isinstance(config, TileConfig) and config.warpgroups_k == 1 and config.wave_cols == width


def test_a_thousand_groups_leave_room_for_a_ring() -> None:
    """Of which one stage may be less, and never fewer than two."""
    for grouping in ROWS:
        few, many = (grouped_problem(grouping, groups, 512, 4096, 7168) for groups in (8, 1024))
        by_tile = {config.tile: config for config in ranked_grouped(few, CHIP) if isinstance(config, TileConfig)}
        for config in ranked_grouped(many, CHIP):
            if isinstance(config, TileConfig) and config.tile in by_tile:
                assert 2 <= config.stages <= by_tile[config.tile].stages
        assert {type(config) for config in ranked_grouped(many, CHIP)} == {TileConfig}


def test_shared_memory_counts_the_table_and_the_scales_ahead() -> None:
    tile = TileConfig(128, 64, 3)
    sizes = {
        (grouping, groups): grouped_shared_bytes(GroupedProblem(grouping, groups, 512, 4096, 7168), tile)
        for grouping in ROWS
        for groups in (1, 1024)
    }
    for grouping in ROWS:
        assert sizes[grouping, 1024] - sizes[grouping, 1] >= 1023 * 12
    # Each stage has the scales of 32 rows more, of which four are needed.
    assert sizes[CONTIGUOUS, 1] - sizes[MASKED, 1] in range(3 * 32 * 4 - 1024, 3 * 32 * 4 + 1025)
    assert all(size % 1024 == 0 for size in sizes.values())


@pytest.mark.parametrize(
    "changes", [{"groups": 0}, {"n": 0}, {"k": 24}, {"m": -1}], ids=lambda changes: next(iter(changes))
)
def test_what_is_no_problem_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InputError):
        replace(GroupedProblem(CONTIGUOUS, 8, 512, 4096, 7168), **changes)


def test_groups_of_columns_have_any_k_and_scales_of_rows() -> None:
    problem = grouped_problem(COLUMNS, 8, 4096, 4096, 1024, OutputType.FLOAT32)
    assert problem.k == NOMINAL_K and problem.scaling is Scaling.ROW and problem.store is StoreKind.TMA
    assert grouped_problem(COLUMNS, 8, 4096, 101, 1024, OutputType.FLOAT32).store is StoreKind.PREDICATED
    with_c = replace(problem, c=Addend.FLOAT32)
    assert all(not faults_of(with_c, config) for config in ranked_grouped(with_c, CHIP))


@settings(max_examples=60, deadline=None)
@given(problem=problems, m=st.integers(1, 1000))
def test_clusters_are_for_groups_of_two_tiles_and_of_columns(problem: GroupedProblem, m: int) -> None:
    ranked = ranked_grouped(replace(problem, m=m), CHIP)
    pairs = [config for config in ranked if isinstance(config, TileConfig) and config.cluster_size > 1]
    assert all(config.cluster_m == config.cluster_size == 2 for config in pairs)
    alone = {replace(config, cluster_m=1) for config in pairs}
    assert alone <= set(ranked)
    if problem.grouping is COLUMNS:
        assert all(config.tile == SHARED_COLUMNS and config.waves_in_flight == 2 for config in pairs)
    else:
        assert not alone or config_rows(alone) < m <= 2 * config_rows(alone)


def config_rows(configs: set[TileConfig]) -> int:
    (rows,) = {config.block_m for config in configs}
    return rows


@pytest.mark.parametrize("grouping", ROWS)
@pytest.mark.parametrize(("n", "k"), [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)])
def test_two_tiles_of_a_group_are_a_cluster_s_where_nearly_all_have_two(n: int, k: int, grouping: Grouping) -> None:
    chosen = {m: select_grouped(grouped_problem(grouping, 32, m, n, k), CHIP) for m in (144, 192, 256)}
    pairs = [m for m, config in chosen.items() if isinstance(config, TileConfig) and config.cluster_m == 2]
    assert pairs == [192]


@pytest.mark.parametrize(("groups", "m", "n"), [(4, 4096, 7168), (4, 7168, 2048), (16, 4096, 7168), (16, 7168, 2048)])
def test_groups_of_columns_share_b_in_clusters(groups: int, m: int, n: int) -> None:
    problem = grouped_problem(COLUMNS, groups, m, n, 8192, OutputType.FLOAT32)
    for each in (problem, problem.accumulating()):
        config = select_grouped(each, CHIP)
        assert isinstance(config, TileConfig) and config.tile == SHARED_COLUMNS


@pytest.mark.parametrize("grouping", [*ROWS, COLUMNS])
def test_one_sm_runs_no_cluster(grouping: Grouping) -> None:
    output = OutputType.FLOAT32 if grouping is COLUMNS else OutputType.BFLOAT16
    ranked = ranked_grouped(grouped_problem(grouping, 32, 192, 6144, 7168, output), hopper.limited_chip(CHIP, 1))
    assert all(config.cluster_size == 1 for config in ranked if isinstance(config, TileConfig))


def test_rows_of_a_group_count_in_steps_that_follow_its_tiles() -> None:
    counted = [counted_rows_of_group(m) for m in range(1, 1001)]
    assert all(m <= rows == counted_rows_of_group(rows) for m, rows in enumerate(counted, 1))
    assert counted == sorted(counted)
    assert list(counted_between(120, 300, counted_rows_of_group)) == [128, *range(144, 257, 16), 320]
