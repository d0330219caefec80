"""Choice of the swapped orientation: how rows are counted, what is considered and where, its cost, and how much it is.

What one of its configs may be is in test_swap_ab.py; what holds for every choice, in test_tuning.py.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.dependent_launch import UNEVEN_WEIGHT
from fp8gemm.tuning.hopper import CHIPS, Chip, limited_chip, named_chip
from fp8gemm.tuning.model import norm
from fp8gemm.tuning.problem import (
    FEW_ROWS,
    OutputType,
    Problem,
    Scaling,
    counted_between,
    counted_rows,
    packed_problem,
)
from fp8gemm.tuning.select import config_by_m, enumerate_configs, ranked_configs, select, swaps
from fp8gemm.tuning.swap_ab import SwapAbConfig, busiest_sm, resident_ctas, swap_ab_candidates, tiles_of, violations
from fp8gemm.tuning.swap_ab_model import DEFAULT, SwapAbCost, predict_swap_ab
from tests.pace import quiet_ms

H200 = named_chip("h200")
LAYERS = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]

ns = st.integers(1, 40_000) | st.integers(1, 3000)
ks = st.integers(1, 1200).map(lambda sixteenths: 16 * sixteenths)
chips = st.sampled_from(list(CHIPS.values()))
some = settings(max_examples=60, deadline=None)


@st.composite
def priced(draw: st.DrawFn) -> tuple[Problem, SwapAbConfig, Chip]:
    """A problem without static weights, one of its candidates, and the chip."""
    problem, chip = Problem(draw(st.sampled_from(FEW_ROWS)), draw(ns), draw(ks)), draw(chips)
    found = list(swap_ab_candidates(problem.m, problem.n, problem.k, chip.num_sms))
    assume(found)
    return problem, draw(st.sampled_from(found)), chip


def test_rows_are_counted_in_steps() -> None:
    counted = [counted_rows(m) for m in range(1, 1001)]
    assert list(dict.fromkeys(counted)) == [8, 16, 24, 32, 48, 64, 96, 128, *range(192, 1025, 64)]
    for m, rows in enumerate(counted, start=1):
        assert m <= rows == counted_rows(rows)
    assert counted == sorted(counted)
    assert [counted_rows(m) for m in (0, 8, 9, 128, 129, 2**31)] == [8, 8, 16, 128, 192, 2**31]


def test_many_rows_are_counted_in_few_steps() -> None:
    """Every 64 rows up to 16384, then in steps that grow with M: none adds more than one row in 128."""
    counted = list(counted_between(1, 2**31 - 1))
    assert counted[:-1] == [m for m in counted if m < 2**31] and counted[-1] == 2**31
    assert [m for m in counted if 128 < m <= 2**14] == list(range(192, 2**14 + 1, 64))
    assert len(counted) < 2500
    for before, rows in pairwise(counted):
        assert counted_rows(before + 1) == counted_rows(rows) == rows
        assert rows - before <= max(64, before // 128)
    assert list(counted_between(129, 256)) == [192, 256] and not list(counted_between(65, 64))


@some
@given(n=ns, k=ks, chip=st.sampled_from(sorted(CHIPS)), static=st.booleans())
@example(n=2112, k=7168, chip="h200", static=False)
@example(n=4096, k=7168, chip="h200", static=True)
def test_steps_and_lists_of_kernels_are_exact_for_every_m(n: int, k: int, chip: str, static: bool) -> None:
    chosen = [select(m, n, k, chip=chip, static_weights=static) for m in range(1, 301)]
    for before, rows in pairwise((0, *FEW_ROWS, 192, 256)):
        assert len(set(chosen[before:rows])) == 1
    steps = config_by_m(replace(packed_problem(300, n, k), static_weights=static), named_chip(chip))
    assert [next(config for largest, config in steps if m <= largest) for m in range(1, 301)] == chosen
    for max_m in (1, 8, 9, 40, 128, 129, 300):
        configs = enumerate_configs(n, k, max_m, chip=chip, static_weights=static)
        assert configs == tuple(dict.fromkeys(chosen[:max_m]))


@some
@given(m=st.sampled_from(FEW_ROWS), n=ns, k=ks, sms=st.sampled_from([*(c.num_sms for c in CHIPS.values()), 1, 5, 16]))
@example(m=8, n=2112, k=7168, sms=132)
@example(m=8, n=65, k=1296, sms=1)
@example(m=128, n=576, k=7168, sms=78)
def test_candidates_are_legal_distinct_and_run_at_once(m: int, n: int, k: int, sms: int) -> None:
    found = list(swap_ab_candidates(m, n, k, sms))
    assert len({config.label for config in found}) == len(set(found)) == len(found)
    for config in found:
        assert violations(config, k) == []
        assert config.block_m == m if m <= 64 else config.block_m == m // 2 <= 64
        ctas = -(-m // config.block_m) * -(-n // config.block_n) * config.split_k
        assert sms <= 2 * ctas, "half of the SMs have nothing to do"
        assert ctas <= sms * resident_ctas(config, k), "some wait until others have ended"
        blocks_of_cta = config.steps(k) * config.blocks_per_stage
        assert (config.split_k - 1) * blocks_of_cta < -(-k // 128), "the last CTA of a cluster has no K block"
        assert config.stages <= max(config.steps(k), 2), "stages that are never used"


@pytest.mark.parametrize(
    ("split_k", "tiles", "sms", "busiest"),
    [
        (1, 132, 132, 1),
        (1, 133, 132, 2),
        (6, 14, 132, 1),
        (6, 16, 132, 2),  # two to a group, but two groups of an H200 have fewer SMs
        (6, 22, 132, 2),  # 132 CTAs, but three clusters of six do not fit 16 SMs
        (5, 24, 132, 2),  # measured 15 to 20 % slower than 24 of four
        (4, 30, 132, 1),
        (8, 14, 132, 1),
        (8, 17, 132, 2),
        (2, 5, 5, 3),  # two at once
        (3, 5, 1, 15),
    ],
)
def test_a_cluster_lies_in_one_of_eight_groups_of_sms(split_k: int, tiles: int, sms: int, busiest: int) -> None:
    assert busiest_sm(SwapAbConfig(8, 64, 4, split_k=split_k), tiles, sms) == busiest


@some
@given(n=ns, k=ks, chip=chips, static=st.booleans())
def test_few_rows_of_a_weight_by_blocks_in_any_order_swap_and_nothing_else_does(
    n: int, k: int, chip: Chip, static: bool
) -> None:
    few = Problem(128, n, k, static_weights=static)
    others = (
        replace(few, m=129),
        replace(few, scaling=Scaling.ROW, output=OutputType.FLOAT32),
        replace(few, batch_invariant=True),
    )
    assert swaps(few)
    for problem in others:
        assert not swaps(problem)
        assert {type(config) for config in ranked_configs(problem, chip)} == {TileConfig}
    for m in (1, 60, 128):
        swapped = [config for config in ranked_configs(replace(few, m=m), chip) if isinstance(config, SwapAbConfig)]
        assert set(swapped) == set(swap_ab_candidates(counted_rows(m), n, k, chip.num_sms))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_serving_shapes_swap_up_to_sixteen_rows_and_not_from_256_on(n: int, k: int, static: bool) -> None:
    for m in (1, 5, 8, 9, 16):
        assert isinstance(select(m, n, k, static_weights=static), SwapAbConfig)
    for m in (256, 257, 4096):
        assert isinstance(select(m, n, k, static_weights=static), TileConfig)


@some
@given(n=ns, k=ks, chip=st.sampled_from(sorted(CHIPS)), static=st.booleans())
@example(n=2112, k=7168, chip="h200", static=False)
def test_few_rows_of_one_weight_need_at_most_eight_kernels(n: int, k: int, chip: str, static: bool) -> None:
    assert len(enumerate_configs(n, k, 128, chip=chip, static_weights=static)) <= 8


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("num_sms", [1, 3, 40, 120, 131])
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_where_sms_are_kept_for_others_a_launch_has_no_more_ctas_than_are_left(
    n: int, k: int, num_sms: int, static: bool
) -> None:
    """CTAs that could share an SM would spread over those that are kept."""
    for m in FEW_ROWS:
        problem = Problem(m, n, k, static_weights=static)
        for config in ranked_configs(problem, limited_chip(H200, num_sms)):
            if isinstance(config, SwapAbConfig):
                assert tiles_of(config, m, n) * config.cluster_size <= num_sms, (m, config)


@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_a_measured_weight_needs_at_most_fourteen_small_m_kernels_used_both_ways(n: int, k: int) -> None:
    chosen = {config for static in (False, True) for config in enumerate_configs(n, k, 128, static_weights=static)}
    assert len([config for config in chosen if isinstance(config, SwapAbConfig)]) <= 14, chosen


@some
@given(case=priced())
def test_a_cost_is_its_launch_its_stream_and_its_parts(case: tuple[Problem, SwapAbConfig, Chip]) -> None:
    problem, config, chip = case
    plain, static = (predict_swap_ab(replace(problem, static_weights=each), config, chip) for each in (False, True))
    for cost in (plain, static):
        assert all(isfinite(value) and value >= 0 for value in vars(cost).values())
        stream = norm(DEFAULT.exponent, cost.dram_us, cost.l2_us, cost.ring_us, cost.sm_us)
        parts = cost.launch_us + stream + cost.tokens_us + cost.sums_us + cost.crowd_us
        assert cost.total_us == pytest.approx(parts)
        assert cost.tiles == tiles_of(config, problem.m, problem.n) and cost.steps == config.steps(problem.k)
        assert min(cost.tiles, cost.resident_ctas, cost.busiest_sm, cost.steps, cost.dram_us, cost.sm_us) > 0
    assert plain.launch_us == DEFAULT.launch_us
    assert static.dram_us == plain.dram_us
    of_sm = ("l2_us", "ring_us", "sm_us", "tokens_us")
    has_room = static.resident_ctas > plain.busiest_sm and problem.n * problem.k >= UNEVEN_WEIGHT
    assert static.busiest_sm == plain.busiest_sm + has_room
    for name in of_sm:
        of_cta = getattr(plain, name) / plain.busiest_sm
        assert getattr(static, name) == pytest.approx(of_cta * static.busiest_sm)
    parts_of_total = {term.name for term in fields(SwapAbCost) if term.metadata["part"]}
    assert parts_of_total == {*of_sm, "dram_us", "sums_us", "crowd_us", "launch_us"}


@some
@given(case=priced(), more=st.floats(1, 10))
def test_a_greater_chip_is_never_slower(case: tuple[Problem, SwapAbConfig, Chip], more: float) -> None:
    """Without static weights: with them, what the ring fetches meanwhile counts, and a slow memory gives it time."""
    problem, config, chip = case
    us = predict_swap_ab(problem, config, chip).total_us * (1 + 1e-12)
    faster = replace(chip, dram_bytes_per_us=chip.dram_bytes_per_us * more)
    wider = replace(chip, num_sms=int(chip.num_sms * more))
    assert predict_swap_ab(problem, config, faster).total_us <= us
    assert predict_swap_ab(problem, config, wider).total_us <= us


def test_the_cost_follows_what_it_should() -> None:
    """One that ignored the weight, the tokens or the launch would be as consistent."""
    config = SwapAbConfig(8, 16, 4, warpgroups_k=2)
    problem = Problem(8, 2112, 7168)
    us = predict_swap_ab(problem, config, H200).total_us
    assert predict_swap_ab(replace(problem, n=4224), config, H200).total_us > 1.3 * us
    assert predict_swap_ab(replace(problem, k=14336), config, H200).total_us > 1.3 * us
    assert predict_swap_ab(replace(problem, m=16), config, H200).total_us > us
    assert predict_swap_ab(replace(problem, static_weights=True), config, H200).total_us < us
    assert predict_swap_ab(problem, config, replace(H200, dram_bytes_per_us=2e6)).total_us > us
    # A ring that holds all of K is filled once.
    assert predict_swap_ab(problem, config, H200).ring_us > 0
    assert predict_swap_ab(problem, replace(config, stages=7), H200).ring_us == 0


def test_a_first_choice_for_few_rows_is_soon_made() -> None:
    """Most of these have a hundred configs."""
    select(8, 64, 128)
    assert quiet_ms(partial(select, 8, n, 7168) for n in range(2048, 2688, 64)) < 6
