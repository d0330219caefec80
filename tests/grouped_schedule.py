"""The schedule of grouped products as a model, in nested loops over groups, and what any schedule is held to."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise, product

from tests.bands import banded

CONTIGUOUS, MASKED, COLUMNS = "kContiguous", "kMasked", "kColumns"
SPLIT = 128
"""Columns that share a scale, and rows of B."""
INT_MIN, INT_MAX = -(2**31), 2**31 - 1


@dataclass(frozen=True)
class Tile:
    """A tile, and all that roles ask of it; the fields are what the harness writes, in order."""

    group: int
    m: int
    n: int
    row_of_a: int
    row_of_b: int
    row_of_d: int
    col_of_d: int
    end_of_d: int
    is_half: bool
    first_k_block: int
    steps: int
    row_of_scales_a: int
    block_of_scales_a: int
    skipped_scales_a: int
    first_block_of_b: int


Walk = dict[tuple[int, int], list[Tile]]
"""(cluster, rank) -> the tiles of that CTA, in order."""


@dataclass(frozen=True)
class Config:
    """What the schedule is compiled for; the fields are the template parameters of the harness, in order."""

    grouping: str
    groups: int
    n: int
    k: int
    block_m: int
    block_n: int
    cluster_m: int
    cluster_n: int
    band: int
    accumulates: bool = False
    halves: bool = False

    @property
    def code(self) -> str:
        numbers = (self.groups, self.n, self.k, self.block_m, self.block_n, self.cluster_m, self.cluster_n, self.band)
        flags = (str(flag).lower() for flag in (self.accumulates, self.halves))
        return f"Config<Grouping::{self.grouping}, {', '.join((*map(str, numbers), *flags))}>"

    @property
    def cluster_cols(self) -> int:
        return -(-self.n // (self.block_n * self.cluster_n))

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n

    def cluster_rows(self, rows: int) -> int:
        return -(-rows // (self.block_m * self.cluster_m))


_KINDS = ((CONTIGUOUS, False), (MASKED, False), (COLUMNS, False), (COLUMNS, True))
_TILES = ((5, 576, 128, 128, 16), (1, 100, 64, 256, 1), (256, 100, 256, 64, 3), (1024, 300, 64, 128, 100))
CONFIGS = [
    Config(grouping, groups, n, 128 if grouping == COLUMNS else 272, block_m, block_n, *cluster, band, accumulates)
    for (grouping, accumulates), cluster in product(_KINDS, ((1, 1), (2, 1), (1, 2)))
    for groups, n, block_m, block_n, band in _TILES
]
# Those that divide the last round between CTAs.
CONFIGS += [
    Config(grouping, groups, n, 272, 128, block_n, 1, 1, band, halves=True)
    for grouping in (CONTIGUOUS, MASKED)
    for groups, n, block_n, band in ((5, 576, 192, 16), (1, 100, 128, 1), (256, 100, 64, 3))
]
# The swapped orientation, where a band has all rows of tiles.
CONFIGS += [
    Config(grouping, groups, n, 272, block_m, block_n, 1, 1, 2**16)
    for grouping in (CONTIGUOUS, MASKED)
    for groups, n, block_m, block_n in ((5, 576, 8, 16), (256, 100, 24, 32), (7, 2112, 64, 64))
]


@dataclass(frozen=True)
class Memory:
    """What the host knows, and what lies in device memory.

    Attributes:
        rows: of A, or of each group where they are masked.
        limit: rows, or columns of A and B.
        begins, ends: for each group; without begins, each begins where the one before ends.
    """

    rows: int
    limit: int
    begins: tuple[int, ...] | None
    ends: tuple[int, ...]

    def ranges(self, config: Config) -> list[tuple[int, int]]:
        """Rows, or K blocks, of each group."""

        def clamped(value: int) -> int:
            return min(max(value, 0), self.limit)

        if config.grouping == MASKED:
            return [(group * self.limit, group * self.limit + clamped(end)) for group, end in enumerate(self.ends)]
        begins = self.begins if self.begins is not None else (0, *self.ends[:-1])
        unit = SPLIT if config.grouping == COLUMNS else 1
        found = [(clamped(begin) // unit, clamped(end) // unit) for begin, end in zip(begins, self.ends, strict=True)]
        return [(begin, max(begin, end)) for begin, end in found]


def memory_of(config: Config, seed: int, flavour: str, *, rows: int) -> Memory:
    """Values of some flavour; which ones follows from the seed."""
    draw = random.Random(seed)
    groups, limit = config.groups, rows
    if config.grouping == COLUMNS:
        limit = SPLIT * draw.choice((0, 1, 7, 2 * groups))
    if flavour == "wild":
        near = (-1, 0, 1, limit // 2, limit, limit + 1, INT_MIN, INT_MAX)
        values = [[draw.choice((*near, draw.randrange(-5, limit + 6))) for _ in range(groups)] for _ in range(2)]
        follow = config.grouping == MASKED or draw.random() < 0.5
        return Memory(rows, limit, None if follow else tuple(values[0]), tuple(values[1]))
    if config.grouping == MASKED:
        few = {"empty": (0,), "full": (limit,)}.get(flavour, (0, 0, 1, limit, draw.randrange(limit + 1)))
        ends = [draw.choice(few) for _ in range(groups)]
        if flavour == "one":
            ends = [0] * groups
            ends[draw.randrange(groups)] = limit
        return Memory(rows, limit, None, tuple(ends))
    unit = SPLIT if config.grouping == COLUMNS else 1
    inner = sorted(draw.randrange(limit // unit + 1) * unit for _ in range(groups - 1))
    limits = [0, *inner, limit]
    if flavour == "empty":
        limits = [draw.choice((0, limit))] * (groups + 1)
    if flavour == "one":
        before = draw.randrange(groups)
        limits = [0] * (before + 1) + [limit] * (groups - before)
    if draw.random() < 0.5:
        return Memory(rows, limit, None, tuple(limits[1:]))
    ranges = list(pairwise(limits))
    draw.shuffle(ranges)  # groups in any order
    return Memory(rows, limit, tuple(begin for begin, _ in ranges), tuple(end for _, end in ranges))


def model_tile(config: Config, memory: Memory, group: int, begin: int, end: int, m: int, n: int) -> Tile:
    """Where a tile of a group lies, in so many words."""
    of_columns = config.grouping == COLUMNS
    first_row = group * memory.rows if of_columns else begin
    row_of_a = m * config.block_m if of_columns else begin + m * config.block_m
    skipped = row_of_a % 4 if config.grouping == CONTIGUOUS else 0
    swapped = config.block_m % 64 != 0
    return Tile(
        group=group,
        m=m,
        n=n,
        row_of_a=row_of_a,
        row_of_b=n * config.block_n + (0 if of_columns else group * config.n),
        row_of_d=first_row + m * config.block_m,
        col_of_d=n * config.block_n,
        end_of_d=first_row + memory.rows if of_columns else end,
        is_half=False,
        first_k_block=begin if of_columns else 0,
        steps=0 if swapped else end - begin if of_columns else -(-config.k // SPLIT),
        row_of_scales_a=m * config.block_m if config.grouping == MASKED else row_of_a - skipped,
        block_of_scales_a=begin if of_columns else group * -(-config.k // SPLIT) if config.grouping == MASKED else 0,
        skipped_scales_a=skipped,
        first_block_of_b=0 if of_columns else group * -(-config.n // SPLIT),
    )


def tile_count(config: Config, memory: Memory) -> int:
    """Tiles of all CTAs."""
    sizes = [end - begin for begin, end in memory.ranges(config)]
    if config.grouping == COLUMNS:
        sizes = [memory.rows if size or not config.accumulates else 0 for size in sizes]
    return sum(map(config.cluster_rows, sizes)) * config.cluster_cols * config.cluster_size


def model_walk(config: Config, memory: Memory, num_clusters: int) -> Walk:
    """Cluster tiles of one group after another are dealt like cards; the CTAs of a cluster divide each."""
    parts = [(i, j) for i in range(config.cluster_m) for j in range(config.cluster_n)]
    walk: Walk = {(cluster, rank): [] for cluster in range(num_clusters) for rank in range(config.cluster_size)}
    dealt = 0
    for group, (begin, end) in enumerate(memory.ranges(config)):
        if begin == end and (config.grouping != COLUMNS or config.accumulates):
            continue
        rows = memory.rows if config.grouping == COLUMNS else end - begin
        for m, n in banded(config.cluster_rows(rows), config.cluster_cols, config.band):
            for rank, (i, j) in enumerate(parts):
                place = m * config.cluster_m + i, n * config.cluster_n + j
                walk[dealt % num_clusters, rank].append(model_tile(config, memory, group, begin, end, *place))
            dealt += 1
    left = dealt % num_clusters
    if config.halves and dealt > num_clusters and 2 * left <= num_clusters:
        divide(walk, left, config.block_m // 2)
    return walk


def divide(walk: Walk, left: int, rows: int) -> None:
    """Deals the last round anew, when each tile has become two of half the rows."""
    tiles = [walk[cluster, 0].pop() for cluster in range(left)]
    for i, tile in enumerate(tiles):
        for j in range(2):
            row = tile.row_of_d + j * rows
            if row < tile.end_of_d:
                walk[2 * i + j, 0].append(
                    replace(
                        tile,
                        row_of_a=row,
                        row_of_d=row,
                        row_of_scales_a=tile.row_of_scales_a + j * rows,
                        end_of_d=min(tile.end_of_d, row + rows),
                        is_half=True,
                    )
                )


def check_properties(walk: Walk, config: Config, memory: Memory, num_clusters: int) -> None:
    """Whoever walks: each row of each group that is to be written once in each column of tiles, and nothing beyond."""
    wanted: Counter[tuple[int, int, int]] = Counter()  # parts of so many rows
    rows = config.block_m // 2 if config.halves else config.block_m
    ranges = memory.ranges(config)
    rows_of_d = memory.rows * (1 if config.grouping == CONTIGUOUS else config.groups)
    cols = -(-config.n // config.block_n)
    for group, (begin, end) in enumerate(ranges):
        if config.grouping == COLUMNS:
            written = memory.rows if begin < end or not config.accumulates else 0
        else:
            written = end - begin
        wanted.update({(group, m, n): 1 for m in range(-(-written // rows)) for n in range(cols)})
        assert 0 <= begin <= end and (config.grouping == COLUMNS or end <= rows_of_d)
    visits: Counter[tuple[int, int, int]] = Counter()
    lengths = []
    for cluster in range(num_clusters):
        members = [walk[cluster, rank] for rank in range(config.cluster_size)]
        lengths.append(len(members[0]))
        assert len({len(tiles) for tiles in members}) == 1, "CTAs of a cluster would wait for each other forever"
        for step in zip(*members, strict=True):
            shared = {(tile.group, tile.m // config.cluster_m, tile.n // config.cluster_n) for tile in step}
            assert len(shared) == 1, f"CTAs of a cluster share operands of one group's cluster tile, not of {shared}"
            if config.cluster_m > 1:
                assert len({(tile.row_of_b, tile.first_k_block, tile.steps) for tile in step}) == 1
            if config.cluster_n > 1:
                assert len({(tile.row_of_a, tile.first_k_block, tile.steps) for tile in step}) == 1
            inside = [tile for tile in step if tile.row_of_d < tile.end_of_d and tile.col_of_d < config.n]
            assert inside, f"{step} writes nothing"
            for tile in inside:
                begin = tile.group * memory.rows if config.grouping == COLUMNS else ranges[tile.group][0]
                first, end = tile.row_of_d - begin, tile.end_of_d - begin
                visits.update(
                    (tile.group, m // rows, tile.n) for m in range(first, min(first + config.block_m, end), rows)
                )
            for tile in step:
                check_places(tile, config, memory, ranges[tile.group], rows_of_d)
    assert visits == wanted
    assert max(lengths) - min(lengths) <= 1


def check_places(tile: Tile, config: Config, memory: Memory, range_: tuple[int, int], rows_of_d: int) -> None:
    """All of a tile lies in its group, and its group in the matrices."""
    begin, end = range_
    assert tile.end_of_d <= rows_of_d
    assert tile.row_of_scales_a % 4 == 0 or config.grouping == MASKED  # where a box may begin
    if config.grouping == COLUMNS:
        assert tile.group * memory.rows <= tile.row_of_d and tile.end_of_d == (tile.group + 1) * memory.rows
        assert tile.first_k_block + tile.steps == end and end * SPLIT <= memory.limit
    else:
        assert begin <= tile.row_of_d == tile.row_of_a
        assert tile.end_of_d == (min(end, tile.row_of_d + config.block_m // 2) if tile.is_half else end)
        assert tile.row_of_b - tile.col_of_d == tile.group * config.n
        assert tile.first_block_of_b == tile.group * -(-config.n // SPLIT)
