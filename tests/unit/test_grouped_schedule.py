"""Which CTA computes which tile of which group: every tile of every group once, whatever lies in device memory.

The device headers are compiled for the host and compared, tile by tile and place by place, with the model of
`tests.grouped_schedule`. Both are held to the same properties.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.grouped_schedule import (
    COLUMNS,
    CONFIGS,
    CONTIGUOUS,
    MASKED,
    Config,
    Memory,
    Tile,
    Walk,
    check_properties,
    memory_of,
    model_walk,
    tile_count,
)
from tests.host_compiler import compile_for_host

WIDE = Config(MASKED, 2, 2**16 * 16 + 3, 272, 8, 16, 1, 1, 2**16)
"""Swapped, and of more columns of tiles than a whole band can have rows in 32 bits."""

HARNESS = Path(__file__).with_name("grouped_schedule_host.cpp")


class DeviceSchedule:
    """The headers, compiled for the host."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._walk_of = functions.walk_of
        self._walk_of.argtypes = [
            ctypes.c_uint32,
            *[ctypes.c_void_p] * 2,
            *[ctypes.c_uint32] * 5,
            *[ctypes.c_void_p] * 2,
        ]

    def walk(self, config: Config, memory: Memory, num_clusters: int, warpgroup: int = 0) -> Walk:
        ctas = num_clusters * config.cluster_size
        capacity = tile_count(config, memory) + num_clusters + 8
        fields = len(Tile.__dataclass_fields__)
        values, counts = (ctypes.c_uint32 * (fields * capacity))(), (ctypes.c_uint32 * ctas)()
        begins = None if memory.begins is None else (ctypes.c_int32 * config.groups)(*memory.begins)
        ends = (ctypes.c_int32 * config.groups)(*memory.ends)
        arguments = (memory.limit, memory.rows, num_clusters, warpgroup, capacity)
        found = self._walk_of([*CONFIGS, WIDE].index(config), begins, ends, *arguments, values, counts)
        assert found < capacity, f"more tiles than there are, or no end: {config}, {memory}"
        tiles = iter(zip(*[iter(values)] * fields, strict=True))
        return {
            divmod(cta, config.cluster_size): [Tile(*next(tiles)) for _ in range(counts[cta])] for cta in range(ctas)
        }


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> DeviceSchedule:
    entries = ", ".join(f"walk<{config.code}>" for config in [*CONFIGS, WIDE])
    source = f"{HARNESS.read_text()}\nWalk* const kWalks[] = {{{entries}}};\n"
    return DeviceSchedule(compile_for_host(source, tmp_path_factory.mktemp("grouped_schedule")))


configs = st.sampled_from(CONFIGS)
seeds = st.integers(0, 2**32)
flavours = st.sampled_from(["usual", "wild", "wild", "one", "empty", "full"])
row_counts = st.one_of(st.integers(0, 12), st.integers(0, 700))
cluster_counts = st.one_of(st.integers(1, 8), st.sampled_from([65, 66, 131, 132]))
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows_for(config: Config, rows: int) -> int:
    """Fewer where there are many groups: their tiles take time, and are no others."""
    if config.grouping == CONTIGUOUS:
        return rows
    return min(rows, {1: 700, 5: 700, 7: 300, 256: 70}.get(config.groups, 9))


@many
@given(config=configs, seed=seeds, flavour=flavours, rows=row_counts, num_clusters=cluster_counts)
@example(config=CONFIGS[0], seed=0, flavour="empty", rows=0, num_clusters=3)
def test_the_model_visits_every_tile_once(
    config: Config, seed: int, flavour: str, rows: int, num_clusters: int
) -> None:
    memory = memory_of(config, seed, flavour, rows=rows_for(config, rows))
    check_properties(model_walk(config, memory, num_clusters), config, memory, num_clusters)


@many
@given(config=configs, seed=seeds, flavour=flavours, rows=row_counts, num_clusters=cluster_counts)
@example(config=CONFIGS[0], seed=0, flavour="empty", rows=0, num_clusters=3)
def test_the_device_schedule_visits_every_tile_once(
    device: DeviceSchedule, config: Config, seed: int, flavour: str, rows: int, num_clusters: int
) -> None:
    memory = memory_of(config, seed, flavour, rows=rows_for(config, rows))
    check_properties(device.walk(config, memory, num_clusters), config, memory, num_clusters)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.code)
def test_the_device_schedule_is_the_model(device: DeviceSchedule, config: Config) -> None:
    for i, flavour in enumerate(("usual", "wild", "one", "empty", "usual", "full", "wild")):
        memory = memory_of(config, i, flavour, rows=rows_for(config, (333, 5, 200)[i % 3]))
        num_clusters = (1, 2, 66, 131)[i % 4]
        assert device.walk(config, memory, num_clusters) == model_walk(config, memory, num_clusters), memory


@many
@given(
    config=st.sampled_from([each for each in CONFIGS if each.halves]),
    seed=seeds,
    rows=row_counts,
    num_clusters=cluster_counts,
)
def test_the_second_warpgroup_has_all_tiles_but_halves(
    device: DeviceSchedule, config: Config, seed: int, rows: int, num_clusters: int
) -> None:
    memory = memory_of(config, seed, "usual", rows=rows_for(config, rows))
    first, second = (device.walk(config, memory, num_clusters, warpgroup) for warpgroup in (0, 1))
    assert second == {cta: [tile for tile in tiles if not tile.is_half] for cta, tiles in first.items()}


@pytest.mark.parametrize("grouping", [CONTIGUOUS, MASKED])
def test_only_a_last_round_of_few_tiles_is_divided(device: DeviceSchedule, grouping: str) -> None:
    """Of three groups of 300 rows, three columns of tiles each: 27 tiles, the last of each group of 44 rows."""
    config = next(each for each in CONFIGS if each.halves and each.grouping == grouping and each.groups == 5)
    memory = Memory(900, 900, (0, 300, 600, 0, 0), (300, 600, 900, 0, 0))
    if grouping == MASKED:
        memory = Memory(300, 300, None, (300, 300, 300, 0, 0))

    def halves(num_clusters: int) -> list[tuple[int, int]]:
        walk = device.walk(config, memory, num_clusters)
        assert all(not tile.is_half for tiles in walk.values() for tile in tiles[:-1])
        last = [tiles[-1] for _, tiles in sorted(walk.items()) if tiles]
        return [(tile.m, tile.end_of_d - tile.row_of_d) for tile in last if tile.is_half]

    assert halves(27) == halves(28) == halves(100) == [], "the only round"
    assert halves(16) == halves(9) == [], "eleven of sixteen, and none"
    assert halves(13) == [(2, 44)], "one tile over, of which the second half has no rows"
    assert halves(12) == [(0, 64), (0, 64), (1, 64), (1, 64), (2, 44)]


def test_an_empty_group_of_columns_has_tiles_unless_the_output_accumulates(device: DeviceSchedule) -> None:
    """They write zeros, in no steps."""
    for config in CONFIGS:
        if config.grouping != COLUMNS or config.groups != 5:
            continue
        memory = Memory(300, 512, None, (0, 128, 128, 512, 512))
        tiles = [tile for tiles in device.walk(config, memory, 3).values() for tile in tiles]
        found = {tile.group: tile.steps for tile in tiles}
        assert found == ({1: 1, 3: 3} if config.accumulates else {0: 0, 1: 1, 2: 0, 3: 3, 4: 0})


def test_more_than_65536_columns_of_tiles_do_not_wrap_around(device: DeviceSchedule) -> None:
    memory = Memory(12, 12, None, (9, 3))
    assert device.walk(WIDE, memory, 2) == model_walk(WIDE, memory, 2)


def test_four_billion_rows_of_masked_groups_do_not_wrap_around(device: DeviceSchedule) -> None:
    config = next(
        each for each in CONFIGS if each.grouping == MASKED and each.groups == 1024 and each.cluster_size == 1
    )
    room = 2**22 - 1
    tiles = device.walk(config, Memory(room, room, None, (0,) * 1023 + (70,)), 1)[0, 0]
    assert {(tile.row_of_d, tile.end_of_d) for tile in tiles} == {
        (1023 * room + row, 1023 * room + 70) for row in (0, 64)
    }
