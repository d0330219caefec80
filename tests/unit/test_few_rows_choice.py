"""The choice for few rows, held to times that were measured: what docs/tuning.md says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from fp8gemm.tuning.dependent_launch import starts_ahead
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Problem, packed_problem
from fp8gemm.tuning.select import Config, ranked_configs
from fp8gemm.tuning.table import NO_TABLES

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
CHIP = named_chip("h200")
FIT, EIGHT, DECODE = "few-rows-fit-h200.json", "few-rows-eight-h200.json", "few-rows-decode-h200.json"
PLAIN, STATIC = "few-rows-choice-h200.json", "few-rows-choice-static-h200.json"


def times_of(row: Mapping[str, Any], file: str, ranked: tuple[Config, ...]) -> dict[str, float]:
    """Times by label with a static weight. Of the fits all were started ahead, and here those count that would be."""
    if file in (PLAIN, STATIC):
        return dict(row["us"])
    if file == DECODE:
        return dict(row["static"])
    ahead = {c.label: starts_ahead(row["m"], row["n"], row["k"], c, CHIP.num_sms) for c in ranked}
    return {label: row["static" if ahead.get(label) else "us"][label] for label in row["us"] if label in row["static"]}


def regrets(file: str, rows: range, *, static: bool) -> list[float]:
    """Time of the choice, or of the first in rank that was measured, over the least, less 1."""
    found = []
    for row in json.loads((RESULTS / file).read_text())["rows"]:
        if row["m"] not in rows:
            continue
        problem: Problem = replace(packed_problem(row["m"], row["n"], row["k"]), static_weights=static)
        ranked = ranked_configs(problem, CHIP, NO_TABLES)
        us = times_of(row, file, ranked) if static else row["us"]
        found.append(next(us[c.label] for c in ranked if c.label in us) / min(us.values()) - 1)
    return found


@pytest.mark.parametrize(
    ("file", "rows", "shapes", "most"),
    [
        (FIT, range(1, 64), 54, 0.018),
        (FIT, range(64, 256), 50, 0.019),
        (EIGHT, range(1, 64), 23, 0.046),
        (DECODE, range(1, 64), 24, 0.021),
        (STATIC, range(1, 64), 24, 0.039),
        (STATIC, range(64, 256), 32, 0.024),
    ],
)
def test_the_choice_with_static_weights(file: str, rows: range, shapes: int, most: float) -> None:
    found = regrets(file, rows, static=True)
    assert len(found) == shapes and fmean(found) <= most


@pytest.mark.parametrize(
    ("file", "rows", "shapes", "most"),
    [
        (EIGHT, range(1, 64), 23, 0.015),
        (DECODE, range(1, 64), 24, 0.011),
        (PLAIN, range(1, 64), 24, 0.022),
        (PLAIN, range(64, 256), 32, 0.010),
    ],
)
def test_the_choice_without(file: str, rows: range, shapes: int, most: float) -> None:
    found = regrets(file, rows, static=False)
    assert len(found) == shapes and fmean(found) <= most


def test_beside_deep_gemm_no_product_of_few_rows_is_slower() -> None:
    for row in json.loads((RESULTS / DECODE).read_text())["rows"]:
        ranked = ranked_configs(packed_problem(row["m"], row["n"], row["k"]), CHIP, NO_TABLES)
        chosen = next(row["us"][c.label] for c in ranked if c.label in row["us"])
        assert row["peers"]["deepgemm"] >= 1.1 * chosen, (row["m"], row["n"], row["k"])
