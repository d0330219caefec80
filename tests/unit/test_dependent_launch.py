"""Which products start ahead of the end of the kernel before them: the rule, who asks it, and what was measured."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.dependent_launch import as_launched, starts_ahead
from fp8gemm.tuning.explain import predict_config
from fp8gemm.tuning.hopper import CHIPS, named_chip
from fp8gemm.tuning.problem import packed_problem, rounded
from fp8gemm.tuning.select import ranked_configs
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.table import NO_TABLES

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "dependent-launch-h200.json"
ROWS_OF_64, ROWS_OF_128 = TileConfig(64, 128, 8, warpgroups_m=1), TileConfig(128, 128, 6)


@pytest.mark.parametrize(
    ("m", "n", "k", "config", "ahead"),
    [
        (64, 4096, 4095, ROWS_OF_64, True),  # 32 CTAs, but the weight is small
        (64, 4096, 4096, ROWS_OF_64, False),
        (64, 14336, 2048, ROWS_OF_64, False),  # 112
        (64, 14464, 2048, ROWS_OF_64, True),  # 113
        (48, 4096, 4096, SwapAbConfig(48, 64, 6), True),  # 64, swapped
        (65, 4096, 4095, ROWS_OF_64, True),
        (65, 4096, 4096, ROWS_OF_64, False),  # two CTAs read each row of the weight
        (129, 4096, 4096, ROWS_OF_128, True),
        (64, 8192, 4096, ROWS_OF_64, False),  # 64 CTAs
        (64, 16384, 4096, ROWS_OF_64, True),  # 128
        (64, 17024, 4096, ROWS_OF_64, False),  # 133
        (32, 14336, 4096, ROWS_OF_64, True),  # 112, of few rows
        (33, 14336, 4096, ROWS_OF_64, False),
        (32, 13440, 4096, ROWS_OF_64, False),  # 105
        (128, 8192, 4096, replace(ROWS_OF_128, split_k=2), True),
        (1024, 8192, 8191, ROWS_OF_128, True),
        (1024, 8192, 8192, ROWS_OF_128, False),  # a millisecond's tenth
        (96, 8192, 4096, SwapAbConfig(48, 64, 6), False),
        (48, 8192, 4096, SwapAbConfig(48, 64, 6), True),
    ],
)
def test_what_starts_ahead(m: int, n: int, k: int, config: TileConfig | SwapAbConfig, ahead: bool) -> None:
    assert starts_ahead(m, n, k, config, 132) is ahead


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 200) | st.integers(1, 3000),
    n=st.integers(1, 40_000),
    k=st.integers(1, 1200).map(lambda sixteenths: 16 * sixteenths),
    chip=st.sampled_from(sorted(CHIPS)),
)
def test_with_a_static_weight_each_config_is_ranked_as_it_is_launched(m: int, n: int, k: int, chip: str) -> None:
    problem, on = packed_problem(m, n, k), named_chip(chip)
    static = replace(problem, static_weights=True)
    for config in ranked_configs(static, on, NO_TABLES):
        launched, counted = as_launched(static, config, on), rounded(static)
        assert launched.static_weights is starts_ahead(counted.m, n, k, config, on.num_sms)
        assert launched == replace(counted, static_weights=launched.static_weights)
        # One that starts behind has no use of it.
        if not launched.static_weights:
            assert predict_config(static, config, on) == predict_config(problem, config, on)


def labelled(label: str) -> TileConfig | SwapAbConfig:
    """What the rule asks of a config that has this label."""
    found = re.fullmatch(r"(?:swap)?(\d+)x(\d+).*?(?:-split(\d)|-c(\d))?", label)
    assert found is not None
    block_m, block_n, split, cluster = (int(part or 1) for part in found.groups())
    if label.startswith("swap"):
        return SwapAbConfig(block_m, block_n, 2, split_k=cluster)
    return replace(ROWS_OF_64, block_m=block_m, block_n=block_n, split_k=split)


def speeds(way: str, rows: range) -> Iterator[tuple[float, float]]:
    """How much faster than behind the kernel before it each measured shape is: ahead of its end, and by the rule."""
    for row in json.loads(RESULTS.read_text())["rows"]:
        if row["m"] in rows:
            ahead = row["behind"][way] / row["ahead"][way]
            sizes: tuple[Any, ...] = row["m"], row["n"], row["k"]
            yield ahead, ahead if starts_ahead(*sizes, labelled(row["ahead"]["config"]), 132) else 1.0


@pytest.mark.parametrize("way", ["products", "quantized"])
def test_the_middle_of_m_was_faster_by_the_rule(way: str) -> None:
    """Than if all started ahead, and than if none did."""
    always, by_rule = zip(*speeds(way, range(48, 256)), strict=True)
    assert len(by_rule) == 105
    assert statistics.geometric_mean(by_rule) > max(statistics.geometric_mean(always) + 0.01, 1.015)
    assert min(by_rule) > max(min(always), 0.94)


@pytest.mark.parametrize("way", ["products", "quantized"])
def test_few_rows_lost_nothing_by_the_rule(way: str) -> None:
    """They are faster ahead, but for a few."""
    always, by_rule = zip(*speeds(way, range(1, 48)), strict=True)
    assert len(by_rule) == 63
    assert statistics.geometric_mean(by_rule) > statistics.geometric_mean(always) > 1.05
    assert min(by_rule) >= min(always)


@pytest.mark.parametrize("way", ["products", "quantized"])
def test_many_rows_were_as_fast_by_the_rule(way: str) -> None:
    """Where clocks make one of two equal launches up to 8 % slower than the other."""
    always, by_rule = zip(*speeds(way, range(256, 2048)), strict=True)
    assert len(by_rule) == 63
    assert statistics.geometric_mean(by_rule) > max(statistics.geometric_mean(always), 1.0) - 0.002
    assert min(by_rule) > min(always)
