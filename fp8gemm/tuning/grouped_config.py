"""Configs of grouped products: how much shared memory they take, and which are worth considering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from fp8gemm.tuning import hopper, swap_ab
from fp8gemm.tuning.candidates import candidate_configs, deepest_config
from fp8gemm.tuning.config import (
    BARRIER_BYTES,
    CROWDED_REGISTERS,
    Tile,
    TileConfig,
    align,
    shared_bytes,
    staged_parts,
    violations,
)
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import FEW_ROWS, Grouping, StoreKind
from fp8gemm.tuning.select import Config, invariant_wave_cols
from fp8gemm.tuning.swap_ab import MAX_TOKENS, SwapAbConfig
from fp8gemm.tuning.tiles import TILES

_SLOW_TILE = (128, 160)
"""Slower than its neighbours by 3 to 7 % at all of DeepGEMM's shapes (H200, 2026-11-22), and by 4 to 8 % than what is
chosen for six masked groups of 1024 rows (2026-11-28). A single product has it for an even number of rounds, which
groups of any size make no use of."""
_TALL_TILE = (256, 128)
"""For other numbers of rounds, likewise; of its rows each group loses more. Not measured with groups."""
_WIDE_TILE = (128, 224)
"""For other numbers of columns, likewise: 7 % slower than its neighbours in groups of columns (H200, 2026-11-27)."""

PAIR = Tile(128, 256)
"""Worth a cluster of two along M where groups have two tiles: these read their weight at one pace, and so from device
memory once (2 to 7 % of the time at 192 rows in a group; where many groups have one tile or three, 5 to 12 % slower;
H200, 2026-11-24)."""
PAIR_ROWS = range(PAIR.block_m + 1, 2 * PAIR.block_m + 1)
"""Rows of a typical group that this is considered for."""

COLUMN_PAIR = Tile(128, 192)
"""Worth such a cluster in groups of columns, whatever their rows, beside the same tile alone, with two waves in flight:
1.6 to 2.2 % faster at 4 groups of 4096x7168x8192 and 16 of 7168x2048x2048 that are accumulated, in bursts and under
load that lasts. 128x128 is not (H200, 2026-11-27). The tile has a stage less and a staging slot for every part of the
output: tiles are many and K is short, so that a warpgroup that waits for slots costs more, -0.1 to +1.4 % in bursts and
+0.7 to +3.0 % under load that lasts at six products that are accumulated, and +0.7 to +1.7 % in bursts at two of new
outputs (H200, 2026-11-29)."""

_CTAS_OF_SM = (1, 2, 3, 4)
_LEAST_SWAPPED_STAGES = 4


def grouped_shared_bytes(problem: GroupedProblem, config: Config) -> int:
    """Size of the kernel's SharedStorage. The kernel asserts at compile time that it computes the same."""
    if isinstance(config, SwapAbConfig):
        return align(swap_ab.used_bytes(config, problem.k) + problem.table_bytes(config.threads), 1024)
    padding = 4 * (align(scales_of_box(problem, config), 32) - config.block_m)
    whole = shared_bytes(config, problem.store, problem.output, problem.scaling, padding_bytes=padding)
    return whole + align(problem.table_bytes(config.threads), 1024)


def scales_of_box(problem: GroupedProblem, config: TileConfig) -> int:
    """Scales of rows of A that are loaded with a K block: groups begin anywhere, boxes on 16 bytes."""
    return config.block_m + (4 if problem.grouping is Grouping.CONTIGUOUS else 0)


@lru_cache(maxsize=256)
def tile_candidates(problem: GroupedProblem, chip: Chip) -> tuple[TileConfig, ...]:
    """Those of the ordinary orientation for every M: the problem's own is 0."""
    return tuple(_tiles(problem, chip))


@lru_cache(maxsize=256)
def pair_candidates(problem: GroupedProblem, chip: Chip) -> tuple[TileConfig, ...]:
    """Those with a cluster for two tiles of a group, for every M that `takes_pairs`: the problem's own is 0."""
    if chip.num_sms < 2:
        return ()
    alone = tile_candidates(problem, chip)
    if problem.grouping is Grouping.COLUMNS:
        pairs = [config for config in alone if config.tile == COLUMN_PAIR and config.waves_in_flight > 1]
    else:
        pairs = [config for config in alone if config.tile == PAIR]
    return tuple(replace(config, cluster_m=2) for config in pairs)


def takes_pairs(problem: GroupedProblem) -> bool:
    """Whether clusters of two are considered for a problem's rows."""
    return problem.grouping is Grouping.COLUMNS or problem.m in PAIR_ROWS


@lru_cache(maxsize=256)
def swapped_candidates(problem: GroupedProblem) -> tuple[SwapAbConfig, ...]:
    """Those of the swapped orientation for every M: the problem's own is 0."""
    if problem.grouping is Grouping.COLUMNS or problem.batch_invariant:
        return ()
    return tuple(dict.fromkeys(_swapped(problem)))


def _tiles(problem: GroupedProblem, chip: Chip) -> Iterator[TileConfig]:
    """Candidates of the ordinary orientation, their rings less deep where the table needs the room."""
    width = None
    if problem.batch_invariant:
        width = invariant_wave_cols(problem.n, problem.k, problem.scaling, chip)
    for config in candidate_configs(problem.store, problem.output, problem.scaling):
        worth = TILES[config.tile]
        if not worth.is_general or (width is None and problem.k not in worth.many):
            continue
        if config.tile[:2] in (_TALL_TILE, _WIDE_TILE) or (width is None and config.tile[:2] == _SLOW_TILE):
            continue
        if width is not None and (config.warpgroups_k > 1 or config.wave_cols != width):
            continue
        if problem.grouping is Grouping.COLUMNS and config.tile == COLUMN_PAIR:
            of_all_parts = staged_parts(config)
            config = deepest_config(config.tile, problem.store, problem.output, problem.scaling, of_all_parts) or config
        fitting = of_groups(problem, config)
        if fitting is not None:
            yield fitting


def of_groups(problem: GroupedProblem, config: TileConfig) -> TileConfig | None:
    """A single product's config as groups can have it, its ring less deep where the table needs the room; None if they
    cannot."""
    if config.split_k > 1 or config.cluster_n > 1 or scales_of_box(problem, config) > hopper.MAX_BOX_ROWS:
        return None
    if config.warpgroups_k > 1 and not _shares_end_with_k(problem, config):
        return None
    addresses = problem.c.is_read or problem.store is StoreKind.PREDICATED
    if problem.grouping is Grouping.COLUMNS and addresses and config.promotion_registers > CROWDED_REGISTERS:
        config = replace(config, waves_in_flight=1)
        if violations(config, problem.store, problem.output, problem.scaling):
            return None
    return _fitting(problem, config)


def _shares_end_with_k(problem: GroupedProblem, config: TileConfig) -> bool:
    """Whether warpgroups that share K never meet a K block past its end that is another group's, instead of zeros."""
    whole = problem.of_group().k_blocks % config.warpgroups_k == 0
    return problem.grouping is Grouping.CONTIGUOUS or (problem.grouping is Grouping.MASKED and whole)


def _fitting(problem: GroupedProblem, config: TileConfig) -> TileConfig | None:
    fewest = min(-(-staged_parts(config) // 2), config.staging_slots)
    shallower = (
        replace(config, stages=stages, staging_slots=slots)
        for stages in (config.stages, config.stages - 1)
        for slots in range(config.staging_slots, fewest - 1, -1)
    )
    room = hopper.SHARED_BYTES_PER_CTA
    return next((each for each in shallower if each.stages >= 2 and grouped_shared_bytes(problem, each) <= room), None)


def _swapped(problem: GroupedProblem) -> Iterator[SwapAbConfig]:
    """Candidates of the swapped orientation: for each tile the deepest rings with which so many CTAs fit an SM."""
    for block_m in (rows for rows in FEW_ROWS if rows <= MAX_TOKENS):
        for block_n in (64, 32, 16):
            for warpgroups_k in (1, 2):
                shallow = SwapAbConfig(block_m, block_n, 2, warpgroups_k)
                if swap_ab.violations(shallow, problem.k):
                    continue
                yield from _of_each_depth(problem, shallow)


def _of_each_depth(problem: GroupedProblem, shallow: SwapAbConfig) -> Iterator[SwapAbConfig]:
    beside = grouped_shared_bytes(problem, shallow) - align(
        shallow.stages * (shallow.stage_bytes + 2 * BARRIER_BYTES), 1024
    )
    for ctas in _CTAS_OF_SM:
        room = hopper.SHARED_BYTES_PER_SM // ctas - hopper.RESERVED_SHARED_BYTES - beside - 1024
        stages = min(room // (shallow.stage_bytes + 2 * BARRIER_BYTES), 4 * shallow.steps(problem.k))
        config = replace(shallow, stages=stages)
        if (
            stages >= _LEAST_SWAPPED_STAGES
            and ctas * shallow.threads * align(shallow.registers, 8) <= hopper.REGISTERS_PER_SM
        ):
            yield config


def swapped_resident_ctas(problem: GroupedProblem, config: SwapAbConfig) -> int:
    """CTAs that an SM holds at once."""
    return max(swap_ab.fitting_ctas(config, grouped_shared_bytes(problem, config)), 1)
