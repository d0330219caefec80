"""Geometric means by M, in the direction that the label says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.bench.report import Row, Shape
from fp8gemm.lab.bench.summary import Summary, geomeans


def row(m: int, n: int, **us: float) -> Row:
    return Row(Shape(m, n, 128), us=us)


ROWS = [
    row(1, 8, ours=2, fast=1, slow=8, floor=1),
    row(1, 16, ours=2, slow=2, floor=1.6),
    row(4, 8, fast=1),
    row(4, 16, ours=4, fast=4),
]


def test_a_ratio_is_the_first_time_over_the_second() -> None:
    assert ROWS[0].time_ratio("fast", "ours") == 0.5
    assert ROWS[2].time_ratio("fast", "ours") is ROWS[2].time_ratio("ours", "fast") is None
    speeds = geomeans(ROWS, {"fast": ("fast", "ours"), "slow": ("slow", "ours")})
    assert speeds == {"1": {"fast": (0.5, 1), "slow": (pytest.approx(2), 2)}, "4": {"fast": (1, 1)}}
    alone = [replace(each, regime=Regime.BURST) for each in ROWS[:1]]
    assert geomeans([*ROWS, *alone], {"fast": ("fast", "ours")})["1 burst"] == {"fast": (0.5, 1)}


def test_a_summary_is_a_line_per_m_and_the_same_in_json() -> None:
    summary = Summary("key", "time over the floor", "time", {"floor": ("ours", "floor"), "other": ("ours", "other")})
    assert summary.lines(ROWS) == [
        "\ntime over the floor, geometric mean (number of shapes)",
        "M = 1: 1.581 of floor (2)",
    ]
    assert summary.as_json(ROWS) == {"1": {"floor": {"time": 1.5811, "shapes": 2}}}
    assert summary.lines(ROWS[2:]) == [] and summary.as_json(ROWS[2:]) == {}
