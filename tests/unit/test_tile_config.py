"""Which tile configs are legal, and which of those are candidates: the most waves, stages and slots that fit."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import pytest

from fp8gemm.tuning import hopper
from fp8gemm.tuning.config import (
    FEW_ROWS_TILES,
    MAX_STAGES,
    TILES,
    TileConfig,
    candidate_configs,
    deepest_config,
    is_for_few_rows,
    shared_bytes,
    staged_parts,
    violations,
)
from fp8gemm.tuning.problem import OutputType, Scaling, StoreKind

SHARED_LIMIT = 232_448  # what a CTA of compute capability 9.0 may ask for
TMA, PREDICATED = StoreKind.TMA, StoreKind.PREDICATED

LEGAL = TileConfig(128, 128, 4)
BROKEN = {
    "consumer warpgroups": (replace(LEGAL, warpgroups_m=1), TMA),
    "consumer warpgroups, has 0 x 2": (replace(LEGAL, warpgroups_m=0, warpgroups_n=2), TMA),
    "block_k": (replace(LEGAL, block_k=64), TMA),
    "block_m = 96": (replace(LEGAL, block_m=96), TMA),
    "block_m = 384": (TileConfig(384, 32, 2), TMA),
    "block_m = 0": (replace(LEGAL, block_m=0), TMA),
    "block_n = 0 does not divide": (replace(LEGAL, block_n=0), TMA),
    "block_n = 176: 176 columns": (TileConfig(128, 176, 2), TMA),
    "0 staging slots": (replace(LEGAL, staging_slots=0), TMA),
    "block_n = 104": (replace(LEGAL, block_n=104), TMA),
    "block_n = 208": (replace(LEGAL, block_n=208, stages=2), TMA),
    "block_n = 33": (TileConfig(64, 33, 4, warpgroups_m=1, warpgroups_n=2), TMA),
    "block_n = 512 exceeds": (TileConfig(64, 512, 2, warpgroups_m=1, warpgroups_n=2), TMA),
    "block_n = 112 row scales": (replace(LEGAL, block_n=112), TMA, Scaling.ROW),
    "cluster": (replace(LEGAL, cluster_m=2, cluster_n=2), TMA),
    "cluster has one or two CTAs, not 1 x 3": (replace(LEGAL, cluster_n=3), TMA),
    "waves are in flight, not 0": (replace(LEGAL, waves_in_flight=0), TMA),
    "waves are in flight, not 3": (replace(LEGAL, block_n=64, waves_in_flight=3), TMA),
    "320 registers for promotion": (TileConfig(256, 256, 2), PREDICATED),
    "240 registers for promotion": (TileConfig(128, 160, 2, waves_in_flight=2), TMA),
    "256 registers for promotion": (replace(LEGAL, block_m=256, stages=2), TMA, Scaling.ROW),
    "1 stages": (replace(LEGAL, stages=1), TMA),
    "bytes of shared memory": (replace(LEGAL, stages=6, staging_slots=9), TMA),
}
WIDTHS = {
    (128, 64): 64,
    (128, 112): 112,
    (128, 160): 160,
    (128, 192): 192,
    (128, 256): 128,
    (256, 128): 128,
    (64, 256): 128,
    (64, 192): 96,
    (64, 64): 32,
}
"""Tiles, and the columns of their waves: a warpgroup's, up to 192."""


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("output", list(OutputType))
@pytest.mark.parametrize("store", list(StoreKind))
def test_candidates_are_legal_distinct_and_as_deep_as_fits(
    store: StoreKind, output: OutputType, scaling: Scaling
) -> None:
    candidates = list(candidate_configs(store, output, scaling))
    assert len(set(candidates)) == len(candidates) >= 8
    assert len({config.label for config in candidates}) == len(candidates)  # labels name cache directories
    for config in candidates:
        assert violations(config, store, output, scaling) == []
        assert shared_bytes(config, store, output, scaling) <= SHARED_LIMIT
        # Waves in flight come first, then stages, and staging slots get what is left.
        two = replace(config, waves_in_flight=2, stages=2, staging_slots=1)
        assert config.waves_in_flight == 2 or violations(two, store, output, scaling)
        parts = staged_parts(config)
        least, most = (-(-parts // 2), parts) if store is TMA else (1, 1)
        assert least <= config.staging_slots <= most
        deeper = replace(config, stages=config.stages + 1, staging_slots=least)
        assert config.stages == MAX_STAGES or shared_bytes(deeper, store, output, scaling) > SHARED_LIMIT
        roomier = replace(config, staging_slots=config.staging_slots + 1)
        assert config.staging_slots == most or shared_bytes(roomier, store, output, scaling) > SHARED_LIMIT


@pytest.mark.parametrize("store", list(StoreKind))
def test_clusters_and_the_smallest_tiles_are_for_few_rows(store: StoreKind) -> None:
    every = [(c.block_m, c.block_n, c.cluster_m, c.cluster_n) for c in candidate_configs(store)]
    assert every == [*((*tile, 1, 1) for tile in TILES), *FEW_ROWS_TILES]
    for config in candidate_configs(store):
        assert is_for_few_rows(config) or config.cluster_size == 1


@pytest.mark.parametrize(("tile", "width"), WIDTHS.items(), ids=str)
def test_a_wave_is_as_wide_as_a_warpgroup_or_half(tile: tuple[int, int], width: int) -> None:
    config = deepest_config(*tile, 1, 1, TMA)
    assert config is not None and config.wave_cols == width


@pytest.mark.parametrize(("rule", "broken"), BROKEN.items(), ids=BROKEN)
def test_a_broken_rule_is_named_and_it_alone(rule: str, broken: tuple[Any, ...]) -> None:
    config, store, *scaling = broken
    (found,) = violations(config, store, OutputType.BFLOAT16, *scaling)
    assert rule in found


def test_the_configs_that_were_broken_are_legal_else() -> None:
    assert violations(LEGAL, TMA) == violations(replace(LEGAL, stages=6, staging_slots=9), PREDICATED) == []
    assert violations(replace(LEGAL, block_n=112), TMA) == violations(LEGAL, TMA, scaling=Scaling.ROW) == []
    assert violations(TileConfig(128, 160, 2), TMA) == violations(replace(LEGAL, block_m=256, stages=2), TMA) == []


def test_the_last_byte_of_shared_memory_may_be_used_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    full = TileConfig(128, 32, 11)
    assert shared_bytes(full, PREDICATED) == SHARED_LIMIT == hopper.SHARED_BYTES_PER_CTA
    assert violations(full, PREDICATED) == []
    monkeypatch.setattr(hopper, "SHARED_BYTES_PER_CTA", SHARED_LIMIT - 1)
    (found,) = violations(full, PREDICATED)
    assert str(SHARED_LIMIT) in found and str(SHARED_LIMIT - 1) in found


@pytest.mark.parametrize("store", list(StoreKind))
def test_shared_memory_holds_what_the_kernel_stages(store: StoreKind) -> None:
    """The exact size is asserted when the kernel is compiled; this bounds it without a compiler."""
    for config in candidate_configs(store):
        stage = (config.block_m + config.block_n) * 128 + 4 * config.block_m
        part = 64 * gcd(config.block_n // config.warpgroups_n, 32)
        output = 2 * config.staging_slots * part * 2 if store is TMA else 0
        least = config.stages * (stage + 16) + output
        assert least <= shared_bytes(config, store) < least + 4096
        assert config.stage_bytes() == stage
        assert config.threads == 384
