"""The choice for few rows, held to times that were measured: what docs/tuning.md says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.dependent_launch import as_launched
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Problem, packed_problem
from fp8gemm.tuning.select import Config, ranked_configs
from fp8gemm.tuning.table import NO_TABLES
from tests.stored import rows_of, runs_of

CHIP = named_chip("h200")
FIT, EIGHT, DECODE = "few-rows-fit-h200.json", "few-rows-eight-h200.json", "few-rows-decode-h200.json"
PLAIN, STATIC = "few-rows-choice-h200.json", "few-rows-choice-static-h200.json"
LARGE, LARGE_STATIC = "few-rows-large-h200.json", "few-rows-large-static-h200.json"
SMALL_STATIC = "few-rows-small-static-h200.json"
DIVIDED = "few-rows-divided-h200.json"


def times_of(row: Mapping[str, Any], file: str, ranked: tuple[Config, ...], problem: Problem) -> dict[str, float]:
    """Times by label. Of the fits all with a static weight were started ahead, and here those count that would be."""
    if not problem.static_weights or file in (STATIC, LARGE_STATIC, SMALL_STATIC):
        return dict(row["us"])
    if file == DECODE:
        return dict(row["static"])
    ahead = {config.label: as_launched(problem, config, CHIP).static_weights for config in ranked}
    return {label: row["static" if ahead.get(label) else "us"][label] for label in row["us"] if label in row["static"]}


def chosen_and_all(row: Mapping[str, Any], file: str, *, static: bool) -> tuple[float, dict[str, float]]:
    """Time of the choice, or of the first in rank that was measured; and all that were, by label."""
    problem = replace(packed_problem(row["m"], row["n"], row["k"]), static_weights=static)
    ranked = ranked_configs(problem, CHIP, NO_TABLES)
    us = times_of(row, file, ranked, problem)
    return next(us[config.label] for config in ranked if config.label in us), us


@pytest.mark.parametrize(
    ("file", "static", "rows", "shapes", "most"),
    [
        (FIT, True, range(1, 64), 54, 0.018),
        (FIT, True, range(64, 256), 50, 0.019),
        (EIGHT, True, range(1, 64), 23, 0.0265),
        (DECODE, True, range(1, 64), 24, 0.021),
        (STATIC, True, range(1, 64), 24, 0.024),
        (STATIC, True, range(64, 256), 32, 0.008),
        (LARGE_STATIC, True, range(1, 64), 8, 0.017),
        (LARGE_STATIC, True, range(64, 256), 32, 0.007),
        # Several of these kernels are on an SM at once, and which are fast then no constants of the model foretell.
        (SMALL_STATIC, True, range(1, 16), 23, 0.057),
        (SMALL_STATIC, True, range(16, 32), 23, 0.057),
        (SMALL_STATIC, True, range(32, 64), 23, 0.092),
        (EIGHT, False, range(1, 64), 23, 0.015),
        (DECODE, False, range(1, 64), 24, 0.011),
        (PLAIN, False, range(1, 64), 24, 0.012),
        (PLAIN, False, range(64, 256), 32, 0.0075),
        (LARGE, False, range(1, 64), 8, 0.014),
        (LARGE, False, range(64, 256), 32, 0.0085),
    ],
)
def test_the_choice_is_about_the_fastest(file: str, static: bool, rows: range, shapes: int, most: float) -> None:
    found = [chosen_and_all(row, file, static=static) for row in rows_of(file) if row["m"] in rows]
    assert len(found) == shapes and fmean(chosen / min(us.values()) - 1 for chosen, us in found) <= most


def test_beside_deep_gemm_no_product_of_few_rows_is_slower() -> None:
    for row in rows_of(DECODE):
        chosen, _ = chosen_and_all(row, DECODE, static=False)
        assert row["peers"]["deepgemm"] >= 1.1 * chosen, (row["m"], row["n"], row["k"])


def label_of(config: Config) -> str:
    """As the file of all that was tried has it."""
    if not isinstance(config, TileConfig):
        return config.label
    return f"{config.label}-w{config.warpgroups_m}{config.warpgroups_n}f{config.waves_in_flight}"


def test_the_choice_is_about_the_fastest_of_all_that_was_tried() -> None:
    """Tiles of twelve widths, divided by up to eight CTAs, few of which are candidates."""
    tried: dict[tuple[int, int, int], dict[str, float]] = {}
    for row in (row for run in runs_of(DIVIDED) for row in run["rows"] if row["m"] >= 48):
        of_shape = tried.setdefault((row["m"], row["n"], row["k"]), {})
        of_shape |= {label: math.sqrt(us * of_shape.get(label, us)) for label, us in row["us"].items()}
    lost = []
    for shape, us in tried.items():
        labels = map(label_of, ranked_configs(packed_problem(*shape), CHIP, NO_TABLES))
        lost.append(next(us[label] for label in labels if label in us) / min(us.values()) - 1)
    assert len(lost) == 105 and fmean(lost) < 0.009


def test_static_weights_start_ahead_or_behind_about_where_that_is_faster() -> None:
    """Of the best of these, each launched as it would be, and beside each launched the faster way."""
    as_they_are, at_best = [], []
    for row in (row for row in runs_of(DIVIDED)[-1]["rows"] if row["m"] >= 48):
        problem = replace(packed_problem(row["m"], row["n"], row["k"]), static_weights=True)
        ranked = [each for each in ranked_configs(problem, CHIP, NO_TABLES) if label_of(each) in row["us"]]
        is_ahead = [as_launched(problem, each, CHIP).static_weights for each in ranked]
        us = [row["ahead" if ahead else "us"][label_of(each)] for each, ahead in zip(ranked, is_ahead, strict=True)]
        as_they_are.append(us[0] / min(us) - 1)
        at_best.append(us[0] / min(*row["us"].values(), *row["ahead"].values()) - 1)
    assert len(as_they_are) == 105 and fmean(as_they_are) < 0.0145 and fmean(at_best) < 0.019
