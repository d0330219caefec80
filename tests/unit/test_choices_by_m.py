"""All choices for one weight, quickly: the same ones that are made for each M alone."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fp8gemm.tuning.candidates import DEPTHS, candidate_configs, rows_decide, why_last
from fp8gemm.tuning.explain import explain_choice, predict_config
from fp8gemm.tuning.grouped import grouped_config_by_m
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import CHIPS, limited_chip, named_chip
from fp8gemm.tuning.model import Predictor, predict, tile_cost
from fp8gemm.tuning.problem import Grouping, Problem, counted_between, packed_problem
from fp8gemm.tuning.select import config_by_m, eligible_configs, ranked_configs, select
from fp8gemm.tuning.table import NO_TABLES
from fp8gemm.tuning.tiles import MANY_ROWS
from tests.pace import quiet_ms
from tests.problems import any_problem
from tests.ring_depths import wants_deeper_ring

chips = st.sampled_from(sorted(CHIPS))
some = settings(max_examples=60, deadline=None)

problems = any_problem(st.integers(1, 300) | st.integers(1, 8000))


@some
@given(problem=problems, chip=chips, sms=st.sampled_from([200, 66, 1]))
@example(problem=Problem(16384, 7168, 2048), chip="h200", sms=200)  # a shape of the shipped table
@example(problem=Problem(16384, 7168, 2048, static_weights=True), chip="h200", sms=200)
@example(problem=Problem(2**17, 7168, 2048), chip="h200", sms=200)
def test_config_by_m_is_the_choice_for_each_m(problem: Problem, chip: str, sms: int) -> None:
    """It ranks nothing for many rows, and leaves out what cannot be chosen: the choice is that of `ranked_configs`."""
    on = limited_chip(named_chip(chip), sms)
    rows = list(counted_between(1, problem.m))
    found = iter(config_by_m(problem, on))
    last, config = next(found)
    for m in rows:
        if m > last:
            last, config = next(found)
        assert config == ranked_configs(replace(problem, m=m), on)[0], m
    assert last == rows[-1] and not list(found)


@some
@given(problem=problems, chip=chips)
def test_what_comes_last_from_many_rows_on_does_not_depend_on_m(problem: Problem, chip: str) -> None:
    on = named_chip(chip)
    configs = [config for config in candidate_configs(problem.store, k=problem.k) if config.tile not in DEPTHS]
    last = [
        {config for config in configs if why_last(replace(problem, m=m), config, on)}
        for m in (MANY_ROWS, problem.m + MANY_ROWS, 2**31)
    ]
    assert last[0] <= last[1] <= last[2]
    # Each cluster has one tile, and all run at once; or all tiles do.
    assert all(rows_decide(config) for config in last[2] - last[0])


@some
@given(problem=problems, chip=chips)
def test_of_a_tile_with_two_depths_of_its_ring_one_comes_last(problem: Problem, chip: str) -> None:
    of_problem = problem.store, problem.output, problem.scaling
    depths = [config for config in candidate_configs(*of_problem, problem.k) if config.tile in DEPTHS]
    eligible = [config for config in depths if not why_last(problem, config, named_chip(chip))]
    for tile in DEPTHS:
        of_tile = [config for config in depths if config.tile == tile]
        assert len(of_tile) < 3
        if len(of_tile) == 2:
            assert problem.k >= 2048 if tile.block_n == 256 else problem.k < 4096
            first = max if wants_deeper_ring(problem, of_tile[0], named_chip(chip).num_sms) else min
            of_tile = [first(of_tile, key=lambda config: config.stages)]
        assert [config for config in eligible if config.tile == tile] == of_tile


@some
@given(problem=problems, chip=chips, share=st.floats(0.5, 1.5))
def test_a_limit_saves_work_and_changes_no_prediction(problem: Problem, chip: str, share: float) -> None:
    on = named_chip(chip)
    for config in candidate_configs(problem.store, problem.output, problem.scaling):
        predictor = Predictor(problem, config, on, tile_cost(problem, config))
        us = predictor.total_us(problem.m)
        assert us == predict(problem, config, on).total_us
        for limit in (us * share, us, math.nextafter(us, math.inf)):
            assert predictor.total_us(problem.m, limit) == us if limit > us else us >= limit


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (7168, 2048), (100, 112), (32768, 512)])
def test_config_by_m_is_select_as_a_step_function(n: int, k: int, static: bool) -> None:
    problem = replace(packed_problem(4096, n, k), static_weights=static)
    steps = config_by_m(problem, named_chip("h200"))
    bounds = [m for m, _ in steps]
    assert bounds == sorted(set(bounds)) and bounds[-1] == 4096
    assert all(before[1] != after[1] for before, after in zip(steps, steps[1:], strict=False))
    position = 0
    for m in range(1, 4097):
        position += m > bounds[position]
        assert steps[position][1] == select(m, n, k, static_weights=static), m


def test_choices_for_any_m_are_found_without_walking_all() -> None:
    """Up to the most rows that a matrix has they take a few times as long as up to those of a usual plan."""
    dense, grouped = Problem(2**31 - 1, 4096, 2048), GroupedProblem(Grouping.MASKED, 8, 2**31 - 1, 4096, 2048)
    started = time.process_time()
    steps = config_by_m(dense, named_chip("h200")), grouped_config_by_m(grouped, named_chip("h200"))
    assert time.process_time() - started < 5
    for found in steps:
        assert found[-1][0] == 2**31 and len(found) < 1000


def test_all_choices_of_a_weight_take_some_fifteen_milliseconds() -> None:
    config_by_m(Problem(16384, 64, 2048), named_chip("h200"))
    weights = [Problem(16384, n, 2048) for n in range(4160, 5440, 128)]
    assert quiet_ms(partial(config_by_m, weight, named_chip("h200")) for weight in weights) < 30


OF_WEIGHTS = [(560, 11392), (1183, 14752), (2034, 16), (4096, 7168), (75, 2336), (139, 96)]


@pytest.mark.parametrize("chip", sorted(CHIPS))
def test_some_weights_have_the_ten_kernels_that_any_may_have(chip: str) -> None:
    """Of these more would be the fastest for some M: those that are left are worth the most."""
    every = (config_by_m(Problem(2**20, n, k), named_chip(chip)) for n, k in OF_WEIGHTS)
    assert max(len({config for m, config in steps if m >= MANY_ROWS}) for steps in every) == 10


@pytest.mark.parametrize(("first_m", "octaves"), [(256, 6), (2**14, 7), (2**21, 10)])
@pytest.mark.parametrize(("n", "k"), OF_WEIGHTS)
def test_what_is_left_out_costs_little(n: int, k: int, first_m: int, octaves: int) -> None:
    """By the model, for M that are equally likely by their logarithm."""
    more = [over_least(Problem(round(first_m * 2 ** (eighth / 8)), n, k)) for eighth in range(8 * octaves)]
    assert sum(more) / len(more) < 0.005 and max(more) < 0.1


@pytest.mark.parametrize("m", [256, 1024, 16768, 2**31 - 1])
def test_where_a_weight_has_less_than_ten_kernels_the_fastest_is_chosen(m: int) -> None:
    """With numbers of rows that were asked about."""
    for n, k in ((75, 2336), (139, 96), (24576, 1536), (32768, 512)):
        steps = config_by_m(Problem(2**31 - 1, n, k), named_chip("h200"))
        assert len({config for rows, config in steps if rows >= MANY_ROWS}) < 10
        assert over_least(Problem(m, n, k)) == 0


def test_what_is_passed_over_is_named_and_then_what_loses() -> None:
    _, least, passed_over, loses, *_ = explain_choice(Problem(2257, 1880, 7792), named_chip("h200")).verdict
    assert "legal configs that the choice may fall on, " in least
    other_kernels = "this weight has other kernels, of which 10 at most are compiled from 256 rows on."
    assert passed_over == f"128x144-s6-c1x1 is predicted no slower, but {other_kernels}"
    assert " loses by " in loses


def over_least(problem: Problem) -> float:
    """What the choice is predicted to take more than the fastest that it may fall on, as a share."""
    chip = named_chip("h200")
    us = [predict_config(problem, config, chip).total_us for config in eligible_configs(problem, chip, NO_TABLES)]
    return us[0] / min(us) - 1
