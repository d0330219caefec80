"""Which CTA computes which tile: every tile once, whatever the shape, the cluster and the size of the grid.

The device headers are compiled for the host and compared, tile by tile, with a model of the order that is written as
nested loops instead of as arithmetic on an index. Both are held to the same properties.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.bands import banded, bands
from tests.host_compiler import compile_for_host

Tile = tuple[int, int, int]
"""m, n, and which of its columns: `WHOLE`, or those of a half."""
WHOLE, LEFT, RIGHT = range(3)
Walk = Callable[[int, int], list[Tile]]
"""(cluster, rank) -> the tiles of that CTA, in order."""

HARNESS = Path(__file__).with_name("scheduler_host.cpp")


@dataclass(frozen=True)
class Config:
    """What the schedule is compiled for; the fields are the template parameters of the harness, in order."""

    n: int
    block_m: int
    block_n: int
    cluster_m: int
    cluster_n: int
    band: int
    half_columns: bool = False

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def code(self) -> str:
        return f"Config<{', '.join(str(value).lower() for value in astuple(self))}>"

    def cluster_rows(self, m: int) -> int:
        return -(-m // (self.block_m * self.cluster_m))

    @property
    def cluster_cols(self) -> int:
        return -(-self.n // (self.block_n * self.cluster_n))


CONFIGS = [
    Config(n, block_m, block_n, cluster_m, cluster_n, band)
    for n in (1, 100, 576, 7168)
    for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2))
    for block_m, block_n, band in ((128, 128, 16), (256, 128, 16), (64, 256, 1), (64, 64, 3), (128, 256, 100))
]
# Those that divide the last round between CTAs.
CONFIGS += [
    Config(n, 128, block_n, 1, 1, band, half_columns=True)
    for n, block_n, band in ((100, 256, 16), (576, 256, 4), (640, 128, 1), (2112, 256, 8))
]


class DeviceScheduler:
    """The headers, compiled for the host."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._schedule_of, self._raster = functions.schedule_of, functions.raster
        self._schedule_of.argtypes = [ctypes.c_uint32] * 6 + [ctypes.c_void_p]
        self._raster.argtypes = [ctypes.c_uint32] * 5 + [ctypes.c_void_p]
        self._raster.restype = None

    def walk(self, config: Config, m: int, num_clusters: int) -> Walk:
        def tiles(cluster: int, rank: int) -> list[Tile]:
            capacity = config.cluster_rows(m) * config.cluster_cols + 1
            triples = (ctypes.c_uint32 * (3 * capacity))()
            index = CONFIGS.index(config)
            count = self._schedule_of(index, m, cluster, num_clusters, rank, capacity, triples)
            assert count < capacity, f"cluster {cluster} of {num_clusters} finds no end at M = {m} with {config}"
            return list(zip(*(triples[field : 3 * count : 3] for field in range(3)), strict=True))

        return tiles

    def raster(self, count: int, num_m: int, num_n: int, band: int, *, first: int = 0) -> list[tuple[int, int]]:
        pairs = (ctypes.c_uint32 * (2 * count))()
        self._raster(first, count, num_m, num_n, band, pairs)
        return list(zip(pairs[::2], pairs[1::2], strict=True))


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> DeviceScheduler:
    entries = ", ".join(f"walk<{config.code}>" for config in CONFIGS)
    source = f"{HARNESS.read_text()}\nWalk* const kWalks[] = {{{entries}}};\n"
    return DeviceScheduler(compile_for_host(source, tmp_path_factory.mktemp("scheduler")))


def model_walk(config: Config, m: int, num_clusters: int) -> Walk:
    """Cluster tiles are dealt like cards; the CTAs of a cluster divide each cluster tile, row-major by rank. Where a
    last round of few tiles is divided, two CTAs have each of them."""
    order = list(banded(config.cluster_rows(m), config.cluster_cols, config.band))
    parts = [(i, j) for i in range(config.cluster_m) for j in range(config.cluster_n)]

    left = len(order) % num_clusters
    divides = config.half_columns and len(order) > num_clusters and 2 * left <= num_clusters
    whole = order[: len(order) - left] if divides else order
    halves = [(*tile, half) for tile in order[len(whole) :] for half in (LEFT, RIGHT)]

    def tiles(cluster: int, rank: int) -> list[Tile]:
        i, j = parts[rank]
        found = [(m * config.cluster_m + i, n * config.cluster_n + j, WHOLE) for m, n in whole[cluster::num_clusters]]
        return found + [tile for tile in halves[cluster : cluster + 1] if first_col(config, tile) < config.n]

    return tiles


def first_col(config: Config, tile: Tile) -> int:
    _, n, half = tile
    return n * config.block_n + (config.block_n // 2 if half == RIGHT else 0)


def check_properties(walk: Walk, config: Config, m: int, num_clusters: int) -> None:
    """Whoever walks: each tile of the output once, in step within a cluster, evenly over the clusters."""
    rows, cols = -(-m // config.block_m), -(-config.n // config.block_n)
    visits: Counter[Tile] = Counter()
    lengths = []
    for cluster in range(num_clusters):
        members = [walk(cluster, rank) for rank in range(config.cluster_size)]
        lengths.append(len(members[0]))
        assert len({len(tiles) for tiles in members}) == 1, "CTAs of a cluster would wait for each other forever"
        for step in zip(*members, strict=True):
            places = {(m // config.cluster_m, n // config.cluster_n) for m, n, _ in step}
            assert len(places) == 1, f"CTAs of a cluster share operands of one cluster tile, not of {places}"
            assert any(m < rows and first_col(config, (m, n, half)) < config.n for m, n, half in step), (
                f"{step} is outside"
            )
            visits.update((m, n, each) for m, n, half in step for each in ((LEFT, RIGHT) if half == WHOLE else (half,)))
    assert set(visits.values()) <= {1}, [tile for tile, count in visits.items() if count > 1]
    every = itertools.product(range(rows), range(cols), (LEFT, RIGHT))
    assert visits.keys() >= {tile for tile in every if first_col(config, tile) < config.n}
    assert max(lengths) - min(lengths) <= 1


configs = st.sampled_from(CONFIGS)
row_counts = st.one_of(st.integers(0, 300), st.integers(0, 4200))
cluster_counts = st.one_of(st.integers(1, 8), st.sampled_from([65, 66, 131, 132]), st.integers(1, 132))
many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(config=configs, m=row_counts, num_clusters=cluster_counts)
@example(config=CONFIGS[-1], m=0, num_clusters=3)
def test_the_model_visits_every_tile_once(config: Config, m: int, num_clusters: int) -> None:
    check_properties(model_walk(config, m, num_clusters), config, m, num_clusters)


@many
@given(config=configs, m=row_counts, num_clusters=cluster_counts)
@example(config=CONFIGS[-1], m=0, num_clusters=3)
def test_the_device_schedule_visits_every_tile_once(
    device: DeviceScheduler, config: Config, m: int, num_clusters: int
) -> None:
    check_properties(device.walk(config, m, num_clusters), config, m, num_clusters)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(map(str, astuple(config))))
@pytest.mark.parametrize("m", [1, 64, 129, 1000, 4096])
def test_the_device_schedule_is_the_model(device: DeviceScheduler, config: Config, m: int) -> None:
    for num_clusters in (1, 2, 5, 66, 131):
        expected, found = model_walk(config, m, num_clusters), device.walk(config, m, num_clusters)
        for cluster in {0, 1, num_clusters // 2, num_clusters - 1} & set(range(num_clusters)):
            for rank in range(config.cluster_size):
                assert found(cluster, rank) == expected(cluster, rank), (num_clusters, cluster, rank)


@many
@given(num_m=st.integers(1, 70), num_n=st.integers(1, 70), band=st.integers(1, 80))
def test_the_device_raster_is_the_model(device: DeviceScheduler, num_m: int, num_n: int, band: int) -> None:
    order = device.raster(num_m * num_n, num_m, num_n, band)
    assert order == list(banded(num_m, num_n, band))


@many
@given(num_m=st.integers(1, 70), num_n=st.integers(1, 70), band=st.integers(1, 80), in_flight=st.integers(1, 132))
def test_tiles_in_flight_share_operands(
    device: DeviceScheduler, num_m: int, num_n: int, band: int, in_flight: int
) -> None:
    """Inside a band, tiles that run together need at most ``band`` blocks of A, and as few of B as that allows."""
    order = device.raster(num_m * num_n, num_m, num_n, band)
    heights = [len(rows) for rows in bands(num_m, band)]
    assert max(heights) <= band and sum(heights) == num_m and min(heights) >= min(num_m, band) // 2
    for rows in bands(num_m, band):
        height, first = len(rows), rows.start * num_n
        of_band = order[first : first + height * num_n]
        assert {m for m, _ in of_band} == set(rows)
        for start in range(max(len(of_band) - in_flight, 0) + 1):
            window = of_band[start : start + in_flight]
            assert len({n for _, n in window}) <= -(-(len(window) - 1) // height) + 1


def test_the_last_tile_of_an_enormous_output(device: DeviceScheduler) -> None:
    num_m, num_n, band = 2**31 // 128, 56, 16
    last = num_m * num_n - 1
    assert device.raster(1, num_m, num_n, band, first=last) == [(num_m - 1, 0)], "of an odd band"


@pytest.mark.parametrize(("num_m", "num_n"), [(5, 2**16 + 1), (3, 2**18 + 1), (1, 2**27), (31, 2**27), (7, 2**16)])
def test_of_many_columns_a_band_has_no_more_tiles_than_32_bits_count(
    device: DeviceScheduler, num_m: int, num_n: int
) -> None:
    """Grouped products of few rows have all of them in one band."""
    for at in {0, 1, 2**16 - 1, min(2**16, num_n - 1), num_n - 1}:
        first = at * num_m
        found = device.raster(num_m, num_m, num_n, 2**16, first=first)
        assert found == [(m, at) for m in range(num_m)], "each column from its top"
    assert device.raster(1, num_m, num_n, 2**16, first=num_m * num_n - 1) == [(num_m - 1, num_n - 1)]


@many
@given(num_n=st.integers(1, 2**31), band=st.one_of(st.integers(1, 2**32 - 1), st.just(2**16)), data=st.data())
def test_no_band_wraps_around(device: DeviceScheduler, num_n: int, band: int, data: st.DataObject) -> None:
    """Whatever the order, each index has a tile of its own: its rows and columns are in range, and lead back to it."""
    num_m = data.draw(st.integers(1, (2**32 - 1) // num_n))
    index = data.draw(st.integers(0, num_m * num_n - 1))
    ((m, n),) = device.raster(1, num_m, num_n, band, first=index)
    assert m < num_m and n < num_n
    height = min(band, (2**32 - 1) // num_n)
    number = min(m // height, max(-(-num_m // height) - 2, 0))  # of the last two bands, that of the first
    top = number * height
    rows_left = num_m - top
    if rows_left <= 2 * height:
        upper = rows_left if rows_left <= height else -(-rows_left // 2)
        is_last = m - top >= upper
        number += is_last
        top, height = (top + upper, rows_left - upper) if is_last else (top, upper)
    columns_before = num_n - 1 - n if number % 2 else n
    assert index == top * num_n + columns_before * height + m - top


def test_only_a_last_round_of_few_tiles_is_divided(device: DeviceScheduler) -> None:
    """Nine columns of tiles, of which the last has no right half."""
    config = next(each for each in CONFIGS if each.half_columns and each.n == 2112)

    def halves(num_clusters: int) -> list[Tile]:
        walk = device.walk(config, 300, num_clusters)
        assert all(tile[2] == WHOLE for cluster in range(num_clusters) for tile in walk(cluster, 0)[:-1])
        last = [walk(cluster, 0)[-1] for cluster in range(num_clusters) if walk(cluster, 0)]
        return [tile for tile in last if tile[2] != WHOLE]

    assert halves(27) == halves(28) == halves(100) == [], "the only round"
    assert halves(16) == halves(9) == [], "eleven of sixteen, and none"
    assert halves(13) == [(2, 8, LEFT)], "one tile over, whose right half has no columns"
    assert halves(12) == [(0, 8, LEFT), (1, 8, LEFT), (2, 8, LEFT)]
