"""The configs of the ordinary orientation that are worth compiling, and for what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

from fp8gemm.sizes import LIMIT
from fp8gemm.tuning import hopper
from fp8gemm.tuning.config import (
    BARRIER_BYTES,
    STAGED_LINE_BYTES,
    STAGING_COLS,
    WAVE_ROWS,
    Tile,
    TileConfig,
    shared_bytes,
    staged_part,
    staged_parts,
    violations,
)
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.tiles import MANY_ROWS, TILES, Worth

COLS_OF_ONE_WARPGROUP = 128
"""In 64 rows, that a warpgroup multiplies alone: sums and two waves in flight fit in a thread's registers, and it reads
A once, where two read it twice. 64x32 to 64x128 take 1 to 10 % less time than with two (bursts, H100, 2026-11-25)."""
COLS_OF_ONE_IN_CLUSTER = 64
"""The same where a cluster divides K: of more, two send each other their sums sooner (64x128, bursts, H100,
2026-11-25). 64x64 takes 2 to 4 % less with one (in turn, H200, 2026-12-01)."""
STACKED_ELEMENTS = 128 * 192
"""Of a tile with row scales of B, from which its warpgroups divide columns, so that waves above one another share them:
from so many on half of the columns still makes waves as fast as those of all (128x128 is 4 % slower so: H200,
2026-11-27)."""
NARROW_SLOTS = 4
"""Of staged parts narrower than these, as many are enough: a stage more is worth more than half of the parts."""

DEEP_RING_K, SHALLOW_RING_K = 2048, 4096
DEPTHS: dict[Tile, tuple[range, int | None, int | None]] = {
    Tile(128, 256): (range(DEEP_RING_K, LIMIT), None, 3),
    Tile(128, 128): (range(SHALLOW_RING_K), 4, None),
}
"""Tiles of which there are two for these K: one trades staging slots for a stage more. Their slots of 32 columns at
least, of the shallower ring and of the deeper, or None for as many as `deepest_config` leaves. Where products of
128x128 have several rounds, a slot for every part is worth more than the sixth stage: 0.5 to 5.7 % at nine with K up
to 3328, in bursts and under load that lasts; in one round as much with K up to 1024, 0.5 to 1.8 % less with 7168
(H200, 2026-11-29)."""
DIVIDED_STAGES, PIECE_ROWS = 4, 64
"""Of a ring from which on two CTAs may divide a tile of the last round: half a tile takes its K blocks faster than
three stages bring them (0.79 instead of 0.67 of a round). And rows of A, and of B these or a multiple, that are loaded
at a time where tiles of more have fewer than a box. Smaller pieces spare more rows, and cost more than that where there
are several (docs/tuning.md)."""
DEEP_RING_N, DIVIDED_ROUNDS = 2048, 5
"""That with the deeper ring is, from so many columns on, for up to so many rounds of tiles of which the last is
divided: 5 to 17 % faster at four products of 1.5 to 4.4 rounds (bursts, H200, 2026-11-29). In one round it is 0.9 %
faster to 0.6 slower at twelve products with K from 2048 to 16384 in bursts, and 0.9 to 3.2 % slower under load that
lasts (H200, 2026-11-30); in two 0.3 % faster to 0.5 slower, and 0.3 to 1.0 % slower (H200, 2026-11-27). In fifteen it
is 5 % slower at K = 2048, 1.5 to 3.4 % from 4096 to 5248, 0.3 to 1.2 % up to 7168 (bursts, H200, 2026-11-25), and 0.4
to 1.3 % from 10880 to 16384 (bursts, H100, 2026-11-25). One round of few rows, which wait for the weight, has the
deeper one: 3 % faster at 96x28672x4096 (in turn, H200, 2026-11-30)."""


def candidate_configs(
    store: StoreKind,
    output: OutputType = OutputType.BFLOAT16,
    scaling: Scaling = Scaling.BLOCK,
    k: int | None = None,
) -> Iterator[TileConfig]:
    """Every config worth compiling for so much K, in a fixed order; without ``k`` one of each tile."""
    for tile in (tile for tile, worth in TILES.items() if scaling in worth.scalings):
        config = deepest_config(tile, store, output, scaling)
        if config is not None:
            yield config
        both = depths(tile, store, output, scaling, k) if k is not None else ()
        yield from (each for each in both if each != config)


def least_k(k: int) -> int:
    """The least K that has the same candidates."""
    return max(least for least in (0, DEEP_RING_K, SHALLOW_RING_K) if least <= k)


@cache
def depths(tile: Tile, store: StoreKind, output: OutputType, scaling: Scaling, k: int) -> tuple[TileConfig, ...]:
    """A tile's configs with a shallower and a deeper ring, if it is one of `DEPTHS` for so much K and both fit. Of
    128x128 with 32-bit outputs or scales of rows nothing was measured."""
    ks, *slots = DEPTHS.get(tile, (range(0), None, None))
    if k not in ks or (tile.block_n == 128 and (output.bytes > 2 or scaling is Scaling.ROW)):
        return ()
    shallow, deep = (deepest_config(tile, store, output, scaling, fewest) for fewest in slots)
    return () if shallow is None or deep is None or shallow == deep else (shallow, deep)


def has_divided_round(tiles: int, ctas: int) -> bool:
    """Whether so few tiles are left for a last round that two CTAs may divide each: ``scheduler/last_round.cuh``."""
    return tiles > ctas and 0 < tiles % ctas <= ctas // 2


def is_of_other_depth(config: TileConfig, problem: Problem, tiles: int, num_sms: int) -> bool:
    """Whether it is one of a tile's two, and the other is for a product of so many tiles."""
    both = depths(config.tile, problem.store, problem.output, problem.scaling, problem.k)
    if not both:
        return False
    deep = both[1]
    few_rows, one_round = problem.m < MANY_ROWS, tiles <= num_sms
    if config.block_n == 128:
        is_deep = few_rows or (problem.k >= DEEP_RING_K and one_round)
    else:
        few_rounds = tiles <= DIVIDED_ROUNDS * num_sms
        is_divided = few_rounds and has_divided_round(tiles, num_sms) and divides_last_round(problem, deep)
        is_deep = problem.n >= DEEP_RING_N and (is_divided or (few_rows and one_round))
    return (config == deep) != is_deep


def divides_last_round(problem: Problem, config: TileConfig) -> bool:
    """Whether two CTAs divide a tile of the last round where these are few: see ``scheduler/last_round.cuh``. Each then
    has one of the two waves of columns that every warpgroup has of a whole tile. What an epilogue adds, or writes
    itself, and outputs of 32 bits take the registers that a second main loop needs."""
    two_waves = config.warpgroups_n == 1 and 2 * config.wave_cols == config.block_n
    alone = config.block_m == config.warpgroups_m * WAVE_ROWS and config.cluster_size == config.warpgroups_k == 1
    is_plain = problem.c is problem.bias is Addend.NONE and problem.scaling is Scaling.BLOCK
    has_registers = is_plain and problem.store is StoreKind.TMA and problem.output.bytes == 2
    in_pieces = config.stages >= DIVIDED_STAGES and problem.n % PIECE_ROWS == 0
    return two_waves and alone and has_registers and in_pieces


def why_last(problem: Problem, config: TileConfig | SwapAbConfig, chip: Chip) -> str:
    """Why a config comes after all others whatever its predicted cost, or an empty string. It is right all the same."""
    if isinstance(config, SwapAbConfig):
        return ""
    worth, tiles_m, tiles_n = TILES[config.tile], -(-problem.m // config.block_m), -(-problem.n // config.block_n)
    of_k = worth.k(problem.m)
    if not of_k:
        return f"it is for {f'{MANY_ROWS} rows and more' if problem.m < MANY_ROWS else f'less than {MANY_ROWS} rows'}"
    # Batch-invariant products have few configs as it is.
    if not problem.batch_invariant and problem.k not in of_k:
        return f"it is for K {f'from {of_k.start}' if problem.k < of_k.start else f'below {of_k.stop}'}"
    any_rounds = problem.m < MANY_ROWS or problem.n in worth.n or (problem.batch_invariant and worth.n)
    if not any_rounds and tiles_m * tiles_n > worth.rounds * chip.num_sms:
        return f"it is for {' or '.join(_limits(worth))}"
    if config.cluster_size > chip.num_sms or config.cluster_m > tiles_m or config.cluster_n > tiles_n:
        return "a CTA of its clusters would have no tile"
    if config.split_k > 1 and tiles_m * tiles_n > chip.clusters(config.split_k):
        return "its clusters, of which each has one tile, would not all run at once"
    if is_of_other_depth(config, problem, tiles_m * tiles_n, chip.num_sms):
        return "with another depth of its ring it is for so many tiles"
    return ""


def _limits(worth: Worth) -> Iterator[str]:
    if worth.n:
        yield f"N below {worth.n.stop}"
    if worth.rounds:
        yield f"{'one round' if worth.rounds == 1 else f'{worth.rounds} rounds'} of tiles at most"


def rows_decide(config: TileConfig) -> bool:
    """Whether from `MANY_ROWS` on it depends on the number of rows what `why_last` says."""
    worth = TILES[config.tile]
    return bool(worth.many) and (config.split_k > 1 or config.tile in DEPTHS or worth.rounds > 0)


MAX_STAGES = 8
"""More stages than this hide no more latency, but for those below."""
STAGES = {Tile(64, 32, split_k=2): 12}
"""More than `MAX_STAGES`: with eight 32 KB of the weight are on their way at a time, which is too few, 4 to 5 % slower
at 48, 64x2112x7168 and 192x576x7168. With sixteen it is 2 to 4 % slower than with twelve (in turn, H200,
2026-12-01)."""


def deepest_config(
    tile: Tile,
    store: StoreKind,
    output: OutputType = OutputType.BFLOAT16,
    scaling: Scaling = Scaling.BLOCK,
    slots: int | None = None,
) -> TileConfig | None:
    """The legal config of a tile with the most waves in flight, of these the most stages, of these the most slots: at
    least so many of 32 columns, or half of its parts. Parts are whole lines where that costs no stage."""

    def room(config: TileConfig) -> int:
        return hopper.SHARED_BYTES_PER_CTA - shared_bytes(config, store, output, scaling)

    for in_flight, least in product((2, 1), divided(tile, scaling, stages=2)):
        parts = staged_parts(least)
        # With half of its parts in flight, a warpgroup waits at most once for its slots.
        half = -(-parts // 2) if staged_part(least)[1] == STAGING_COLS else min(-(-parts // 2), NARROW_SLOTS)
        most, fewest = (parts, slots or half) if store is StoreKind.TMA else (1, 1)
        empty = replace(least, stages=0, waves_in_flight=in_flight, staging_slots=fewest)
        stages = room(empty) // (empty.stage_bytes(scaling) + 2 * BARRIER_BYTES)
        config = replace(empty, stages=min(stages, STAGES.get(tile, MAX_STAGES)))
        if violations(config, store, output, scaling):
            continue
        more = (replace(config, staging_slots=slots) for slots in range(most, fewest, -1))
        config = next((fitting for fitting in more if room(fitting) >= 0), config)
        return in_whole_lines(config, store, output, scaling)
    return None


def in_whole_lines(config: TileConfig, store: StoreKind, output: OutputType, scaling: Scaling) -> TileConfig:
    """The same with the output staged in whole lines, if a warpgroup has two such parts or more and there is room for
    half of them."""
    wide = replace(config, staging_cols=STAGED_LINE_BYTES // output.bytes)
    parts = staged_parts(wide)
    if store is not StoreKind.TMA or staged_part(wide) == staged_part(config) or parts < 2:
        return config
    fitting = (replace(wide, staging_slots=slots) for slots in range(parts, (parts - 1) // 2, -1))
    return next((each for each in fitting if not violations(each, store, output, scaling)), config)


def divided(tile: Tile, scaling: Scaling, stages: int) -> tuple[TileConfig, ...]:
    """A tile among its warpgroups, best first. A narrow wave is for one alone, or for two where the registers of one do
    not hold two in flight. Else two have half of the rows each, or of the columns where rows are one wave, or where row
    scales of B are worth sharing; or share K. Of three waves above one another each has its own.
    """
    if tile.block_m > WAVE_ROWS and scaling is Scaling.ROW and tile.block_m * tile.block_n >= STACKED_ELEMENTS:
        divisions: tuple[tuple[int, int], ...] = ((1, 2), (2, 1))
    elif tile.block_m == 3 * WAVE_ROWS:
        divisions = ((3, 1),)
    elif tile.block_m > WAVE_ROWS:
        divisions = ((2, 1),)
    elif tile.warpgroups_k > 1:
        divisions = ((1, 1),)
    elif tile.block_n <= (COLS_OF_ONE_WARPGROUP if tile.split_k == 1 else COLS_OF_ONE_IN_CLUSTER):
        divisions = ((1, 1), (1, 2))
    else:
        divisions = ((1, 2),)
    return tuple(TileConfig(stages=stages, warpgroups_m=m, warpgroups_n=n, **tile._asdict()) for m, n in divisions)
