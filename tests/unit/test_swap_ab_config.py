"""Configs of the swapped orientation: which are legal and why others are not, what they take, how they are called."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fp8gemm.tuning import hopper
from fp8gemm.tuning.config import MAX_WAVE_COLS
from fp8gemm.tuning.problem import Scaling
from fp8gemm.tuning.swap_ab import SwapAbConfig, shared_bytes, violations
from tests.swap_ab import SPREAD, k_of_steps

GOOD = SwapAbConfig(16, 32, 4, warpgroups_k=2, split_k=2)
K = 7168

configs = st.builds(
    SwapAbConfig,
    st.integers(1, 24).map(lambda eights: 8 * eights),
    st.sampled_from([16, 32, 64]),
    st.integers(2, 12),
    st.sampled_from([1, 2]),
    st.integers(1, 8),
)
depths = st.integers(1, 1024).map(lambda sixteens: 16 * sixteens)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_n": 8}, "block_n = 8 is none of 16, 32 and 64"),
        ({"block_n": 128}, "block_n = 128"),
        ({"block_k": 64}, "block_k must be the scale block, 128, is 64"),
        ({"block_m": 12}, "block_m = 12 is not a multiple of 8"),
        ({"block_m": 0}, "block_m = 0 is not a multiple of 8"),
        ({"block_m": 56, "block_n": 16, "stages": 2}, "4 slices fit an instruction"),
        (
            {"block_m": 200, "block_n": 64, "stages": 2, "warpgroups_k": 1},
            f"multiple of 8 up to {MAX_WAVE_COLS}, of which 1 slices",
        ),
        ({"block_m": 64, "stages": 2}, "242 registers of a thread do not fit in 168"),
        ({"split_k": 0}, "1 to 8 CTAs of a cluster divide K, not 0"),
        ({"split_k": 9}, "1 to 8 CTAs of a cluster divide K, not 9"),
        ({"warpgroups_k": 3}, "one or two warpgroups divide K, not 3"),
        ({"stages": 1}, "1 stages cannot overlap"),
        ({"stages": 40}, f"bytes of shared memory exceed {hopper.SHARED_BYTES_PER_CTA}"),
    ],
)
def test_an_illegal_config_says_why(change: dict[str, int], words: str) -> None:
    found = violations(replace(GOOD, **change), K)
    assert len(found) == 1 and words in found[0], found


def test_what_is_legal_and_for_which_scaling() -> None:
    assert violations(GOOD, K) == []
    (why,) = violations(GOOD, K, Scaling.ROW)
    assert "B is scaled by blocks" in why


def test_every_broken_rule_is_named() -> None:
    assert len(violations(replace(GOOD, stages=1, warpgroups_k=3, split_k=9), K, Scaling.ROW)) == 4


@given(config=configs, k=depths)
def test_steps_cover_k_and_no_more_than_one_step_is_past_it(config: SwapAbConfig, k: int) -> None:
    of_a_step = 128 * config.blocks_per_stage * config.split_k
    assert 0 <= config.steps(k) * of_a_step - k < of_a_step


@given(config=configs, steps=st.integers(1, 40), full=st.booleans())
def test_k_of_steps_has_these_steps(config: SwapAbConfig, steps: int, full: bool) -> None:
    assert config.steps(k_of_steps(config, steps, full=full)) == steps


@given(config=configs, k=depths)
def test_shared_memory_holds_the_ring_the_products_and_the_sums(config: SwapAbConfig, k: int) -> None:
    size = shared_bytes(config, k)
    ring = config.stages * config.stage_bytes
    products = 4 * config.block_m * config.steps(k) * config.blocks_per_stage
    # A CTA of a cluster has the sums of every share, but of its own columns alone.
    shares = config.split_k * config.blocks_per_stage
    sums = 4 * config.block_m * shares * -(-config.block_n // config.split_k)
    assert ring + products + sums < size and size % 1024 == 0
    # Rows of sums are padded by up to 8 floats, and cut to pieces of 4 columns.
    assert size <= ring + products + sums + 16 * config.stages + 4 * config.block_m * shares * 11 + 4096


@given(config=configs, k=depths)
def test_a_deeper_ring_takes_as_much_more_as_its_stages(config: SwapAbConfig, k: int) -> None:
    deeper = replace(config, stages=config.stages + 1)
    more = shared_bytes(deeper, k) - shared_bytes(config, k)
    assert config.stage_bytes <= more <= config.stage_bytes + 2048


@given(config=configs)
def test_an_instruction_has_64_rows_of_weights_and_all_their_tokens(config: SwapAbConfig) -> None:
    assert config.slices * config.block_n == 64 and config.wave_cols == config.slices * config.block_m
    assert config.blocks_per_stage == config.slices * config.warpgroups_k
    assert config.stage_bytes == config.blocks_per_stage * 128 * (config.block_m + config.block_n)
    assert config.threads == 128 * config.warpgroups_k + 32 and config.cluster_size == config.split_k


@given(one=configs, other=configs)
def test_labels_tell_configs_apart(one: SwapAbConfig, other: SwapAbConfig) -> None:
    assume(one != other)
    assert one.label != other.label


def test_labels_are_short_and_safe_in_a_path() -> None:
    assert SwapAbConfig(8, 16, 9).label == "swap8x16-d9-c1"
    assert GOOD.label == "swap16x32-k2-d4-c2"


def test_the_spread_of_the_tests_is_legal_and_has_every_kind() -> None:
    for k in (16, 112, 128, 144, 272, 1040, 2560, 7168, 16384):
        assert not any(violations(config, k) for config in SPREAD), k
    for field, values in (
        ("block_m", {8, 16, 24, 32, 48, 64}),
        ("block_n", {16, 32, 64}),
        ("warpgroups_k", {1, 2}),
        ("split_k", {1, 2, 3, 4, 7, 8}),
        ("slices", {1, 2, 4}),
    ):
        assert {getattr(config, field) for config in SPREAD} >= values, field
    assert len({config.label for config in SPREAD}) == len(SPREAD)
