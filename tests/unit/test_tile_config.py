"""Which tile configs are legal, and which of those are candidates: the most waves, stages and slots that fit."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import pytest

from fp8gemm.tuning import hopper
from fp8gemm.tuning.candidates import MAX_STAGES, NARROW_SLOTS, STAGES, candidate_configs, deepest_config, why_last
from fp8gemm.tuning.config import STAGING_COLS, Tile, TileConfig, shared_bytes, staged_part, staged_parts, violations
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.tiles import MANY_ROWS, TILES

SHARED_LIMIT = 232_448  # what a CTA of compute capability 9.0 may ask for
TMA, PREDICATED = StoreKind.TMA, StoreKind.PREDICATED

LEGAL = TileConfig(128, 128, 4)
SHARED_K = TileConfig(64, 128, 3, warpgroups_m=1, warpgroups_k=2)
BROKEN = {
    "three above one another, has 2 x 2 x 1": (replace(LEGAL, warpgroups_n=2), TMA),
    "consumer warpgroups, has 0 x 2 x 1": (replace(LEGAL, warpgroups_m=0, warpgroups_n=2), TMA),
    "consumer warpgroups, has 1 x 1 x 0": (replace(SHARED_K, warpgroups_k=0), TMA),
    "three above one another, has 1 x 1 x 3": (replace(SHARED_K, stages=2, warpgroups_k=3), PREDICATED),
    "a multiple of 32 columns, not 128 x 128": (replace(SHARED_K, block_m=128, stages=2), PREDICATED),
    "a multiple of 32 columns, not 64 x 80": (replace(SHARED_K, block_n=80), TMA),
    "a multiple of 32 columns, not 64 x 256": (replace(SHARED_K, block_n=256, stages=2), PREDICATED),
    "288 registers for promotion": (replace(SHARED_K, block_n=192, stages=2, waves_in_flight=2), TMA),
    "249856 bytes of shared memory": (replace(SHARED_K, stages=4, staging_slots=4), TMA),
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
    "kept of one wave's columns": (TileConfig(128, 256, 2), TMA, Scaling.ROW),
    "192 registers for promotion": (replace(SHARED_K, waves_in_flight=2), TMA, Scaling.ROW),
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
    (64, 128): 128,
    (64, 96): 96,
    (64, 64): 64,
    (64, 32): 32,
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
        half = -(-parts // 2) if staged_part(config)[1] >= STAGING_COLS else min(-(-parts // 2), NARROW_SLOTS)
        least, most = (half, parts) if store is TMA else (1, 1)
        assert least <= config.staging_slots <= most
        deeper = replace(config, stages=config.stages + 1, staging_slots=least)
        most_stages = STAGES.get(config.tile, MAX_STAGES)
        assert config.stages == most_stages or shared_bytes(deeper, store, output, scaling) > SHARED_LIMIT
        roomier = replace(config, staging_slots=config.staging_slots + 1)
        assert config.staging_slots == most or shared_bytes(roomier, store, output, scaling) > SHARED_LIMIT


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("store", list(StoreKind))
def test_clusters_that_share_operands_of_block_scaled_products_are_for_few_rows(
    store: StoreKind, scaling: Scaling
) -> None:
    every = [config.tile for config in candidate_configs(store, scaling=scaling)]
    wanted = [tile for tile, worth in TILES.items() if scaling in worth.scalings]
    assert every == wanted and len(every) > 12
    for tile in every:
        assert not TILES[tile].many or tile == Tile(128, 224, cluster_m=2) or tile.cluster_m * tile.cluster_n == 1


SPLIT = {Tile(128, 128, split_k=2), Tile(128, 96, split_k=2), Tile(64, 128, split_k=4)}
LONG, NARROW = {Tile(64, 64, warpgroups_k=2)}, {Tile(64, 32), Tile(64, 64), Tile(64, 96)}
TALL = Tile(256, 128)  # for long K alone with few rows
LONG_ROUND, SHORT_ROUND = {Tile(64, 80), Tile(64, 160), Tile(128, 80), Tile(128, 144), Tile(256, 96)}, {Tile(192, 64)}
TWO_ROUNDS = {Tile(128, 96), Tile(192, 96), Tile(128, 144)}
OF_FEW_ROUNDS = LONG_ROUND | SHORT_ROUND | TWO_ROUNDS
DIVIDED_OF_FEW_ROWS = {
    Tile(128, 64, split_k=4),
    Tile(64, 64, split_k=2),
    Tile(64, 64, split_k=4),
    Tile(64, 32, split_k=2),
    Tile(64, 32, warpgroups_k=2),
}
OF_FEW_ROWS = DIVIDED_OF_FEW_ROWS | {
    Tile(64, 64, cluster_m=2),
    Tile(64, 64, cluster_n=2),
    Tile(128, 64, split_k=2),
    Tile(192, 128, split_k=2),
}
OF_MANY_ROWS = {Tile(64, 128, split_k=4)}
H200 = named_chip("h200")


def last_tiles(problem: Problem) -> set[Tile]:
    """Those of which the config, or both, comes last."""
    configs = list(candidate_configs(problem.store, problem.output, problem.scaling, problem.k))
    eligible = {config.tile for config in configs if not why_last(problem, config, H200)}
    return {config.tile for config in configs} - eligible


@pytest.mark.parametrize(
    ("k", "others"),
    [
        (16, SPLIT | LONG | LONG_ROUND),
        (1008, SPLIT | LONG | LONG_ROUND),
        (1024, LONG | LONG_ROUND),
        (2032, LONG | LONG_ROUND),
        (2048, NARROW | SHORT_ROUND),
    ],
)
def test_some_tiles_are_for_long_k_or_short_k_alone(k: int, others: set[Tile]) -> None:
    assert last_tiles(Problem(MANY_ROWS, 320, k)) == others | OF_FEW_ROWS
    of_many_rows = OF_FEW_ROUNDS - {Tile(192, 96)} | OF_MANY_ROWS | ({TALL} if k < 2048 else set())
    of_less_k = DIVIDED_OF_FEW_ROWS if k < 1024 else set()
    of_any_k = {Tile(64, 64), Tile(64, 96)}  # with few rows
    assert last_tiles(Problem(MANY_ROWS - 1, 320, k)) == (others - of_any_k) | of_many_rows | of_less_k


@pytest.mark.parametrize(("n", "of_less"), [(1599, 0), (1600, 1), (5120, 1)])
def test_with_many_rows_some_tiles_are_for_less_columns(n: int, of_less: int) -> None:
    def reasons(m: int) -> list[str]:
        return [why_last(Problem(m, n, 4096), config, H200) for config in candidate_configs(TMA)]

    assert sum(reason.startswith("it is for N below") for reason in reasons(MANY_ROWS)) == of_less
    assert not any("for N below" in reason for reason in reasons(MANY_ROWS - 1))


@pytest.mark.parametrize(("n", "rows_of_tiles", "is_last"), [(5119, 999, False), (5120, 105, False), (5120, 106, True)])
def test_256x128_saves_a_round_of_some_where_columns_are_many(n: int, rows_of_tiles: int, is_last: bool) -> None:
    """105 x 40 tiles are 32 rounds of 132."""
    config, m = deepest_config(TALL, TMA), 256 * rows_of_tiles
    assert config is not None
    said = "it is for N below 5120 or 32 rounds of tiles at most" if is_last else ""
    assert why_last(Problem(m, n, 1024), config, H200) == said
    assert why_last(Problem(m, n, 1024, batch_invariant=True), config, H200) == ""


@pytest.mark.parametrize("k", [512, 4096])
def test_some_tiles_are_for_few_rounds(k: int) -> None:
    """Of 132 tiles that all run at once, or twice as many, and not of one more."""
    for tile in (tile for tile in OF_FEW_ROUNDS if k in TILES[tile].many):
        config = deepest_config(tile, TMA)
        assert config is not None
        rounds = 2 if tile in TWO_ROUNDS else 1
        most, more = (Problem(tiles * tile.block_m, tile.block_n, k) for tiles in (132 * rounds, 132 * rounds + 1))
        assert not why_last(most, config, H200)
        assert f"it is for {('one round', '2 rounds')[rounds - 1]}" in why_last(more, config, H200)
        assert bool(why_last(replace(most, m=192), config, H200)) == (tile != Tile(192, 96))
        assert not why_last(replace(most, batch_invariant=True), config, H200)
        assert not TILES[tile].sets_width(most.m)


@pytest.mark.parametrize(("tile", "width"), WIDTHS.items(), ids=str)
def test_a_wave_is_as_wide_as_a_warpgroup_or_half(tile: tuple[int, int], width: int) -> None:
    config = deepest_config(Tile(*tile), TMA)
    assert config is not None and config.wave_cols == width


@pytest.mark.parametrize(("rule", "broken"), BROKEN.items(), ids=BROKEN)
def test_a_broken_rule_is_named_and_it_alone(rule: str, broken: tuple[Any, ...]) -> None:
    config, store, *scaling = broken
    (found,) = violations(config, store, OutputType.BFLOAT16, *scaling)
    assert rule in found


@pytest.mark.parametrize("store", list(StoreKind))
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("block_n", range(32, 193, 32))
def test_any_wave_of_whole_pairs_of_columns_may_share_k(
    block_n: int, cluster: tuple[int, int], store: StoreKind
) -> None:
    config = deepest_config(Tile(64, block_n, 2, *cluster), store)
    assert config is not None and violations(config, store) == []
    assert (config.warpgroups_m, config.warpgroups_n, config.wave_cols) == (1, 1, block_n)
    is_of_few_rows = config.tile == Tile(64, 32, warpgroups_k=2)
    assert (config.tile in OF_FEW_ROWS) == is_of_few_rows and f"-k2-s{config.stages}" in config.label


@pytest.mark.parametrize(("block_m", "block_n"), [(128, 64), (64, 48), (64, 256)])
def test_no_other_tile_may_share_k(block_m: int, block_n: int) -> None:
    assert deepest_config(Tile(block_m, block_n, 2), PREDICATED) is None


def test_the_configs_that_were_broken_are_legal_else() -> None:
    assert violations(LEGAL, TMA) == violations(replace(LEGAL, stages=6, staging_slots=9), PREDICATED) == []
    assert violations(replace(LEGAL, block_n=112), TMA) == violations(LEGAL, TMA, scaling=Scaling.ROW) == []
    assert violations(SHARED_K, TMA) == violations(replace(SHARED_K, block_n=192, stages=2), TMA) == []
    assert violations(TileConfig(128, 160, 2), TMA) == violations(replace(LEGAL, block_m=256, stages=2), TMA) == []


def test_the_last_byte_of_shared_memory_may_be_used_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    full = TileConfig(64, 160, 8, warpgroups_m=1, warpgroups_n=2)
    assert shared_bytes(full, PREDICATED) == SHARED_LIMIT == hopper.SHARED_BYTES_PER_CTA
    assert violations(full, PREDICATED) == []
    monkeypatch.setattr(hopper, "SHARED_BYTES_PER_CTA", SHARED_LIMIT - 1)
    (found,) = violations(full, PREDICATED)
    assert str(SHARED_LIMIT) in found and str(SHARED_LIMIT - 1) in found


@pytest.mark.parametrize("store", list(StoreKind))
def test_shared_memory_holds_what_the_kernel_stages(store: StoreKind) -> None:
    """The exact size is asserted when the kernel is compiled; this bounds it without a compiler."""
    for config in candidate_configs(store):
        block = (config.block_m + config.block_n) * 128 + 4 * config.block_m
        stage = block * config.warpgroups_k
        stored_cols = config.block_n // config.warpgroups_n // config.warpgroups_k // config.split_k
        output = (
            config.warpgroups * config.staging_slots * 64 * gcd(stored_cols, config.staging_cols) * 2
            if store is TMA
            else 0
        )
        exchanged = 4 * config.block_m * config.block_n // 2 if config.warpgroups_k == 2 else 0
        exchanged += 4 * config.block_m * config.block_n // config.split_k * (config.split_k - 1)
        least = config.stages * (stage + 16) + exchanged + output
        assert least <= shared_bytes(config, store) < least + 4096
        assert (config.block_bytes(), config.stage_bytes()) == (block, stage)
        of_one = config.block_n <= (128 if config.split_k == 1 else 64)
        is_one_wave = config.block_m == 64 and of_one and config.warpgroups_k == 1
        of_rows = {64: 1 if is_one_wave else 2, 192: 3}
        assert config.warpgroups == of_rows.get(config.block_m, 2) and config.threads == 128 * (1 + config.warpgroups)


def test_warpgroups_that_share_k_hold_a_block_each_and_the_sums_of_a_whole_tile() -> None:
    """Beside warpgroups that divide the columns: twice the bytes of a stage, and twice the registers."""
    divided = replace(SHARED_K, warpgroups_n=2, warpgroups_k=1)
    assert (SHARED_K.wave_cols, divided.wave_cols) == (128, 64)
    for scaling, block in ((Scaling.BLOCK, 192 * 128 + 4 * 64), (Scaling.ROW, 192 * 128 + 4 * 192)):
        assert SHARED_K.block_bytes(scaling) == divided.block_bytes(scaling) == divided.stage_bytes(scaling) == block
        assert SHARED_K.stage_bytes(scaling) == 2 * block
    assert SHARED_K.promotion_registers == 2 * divided.promotion_registers
    assert staged_parts(SHARED_K) == staged_parts(divided) == 2
    shared, alike = (shared_bytes(each, PREDICATED) for each in (SHARED_K, replace(divided, stages=6)))
    assert shared == alike + 64 * 128 * 4 // 2  # half of the tile's sums


def test_labels_say_how_k_is_shared_and_nothing_where_it_is_not() -> None:
    assert (LEGAL.label, SHARED_K.label) == ("128x128-s4-c1x1", "64x128-k2-s3-c1x1")
    assert replace(SHARED_K, cluster_n=2).label == "64x128-k2-s3-c1x2"
