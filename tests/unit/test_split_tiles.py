"""Which CTA has what of a tile of which a cluster divides K, by the device code: each K block, each column is one's."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8gemm.tuning.candidates import deepest_config
from fp8gemm.tuning.config import MAX_SPLIT, Tile, TileConfig
from fp8gemm.tuning.problem import StoreKind
from tests.host_compiler import compile_for_host

TILES = [(64, 128), (64, 256), (128, 96), (128, 128), (128, 160), (128, 192), (128, 256), (256, 128)]
SHAPES = [(2112, 7168), (100, 128), (448, 13184), (1000, 400)]
"""N and K of kernels."""
CONFIGS = [
    config
    for tile, split in product(TILES, range(2, MAX_SPLIT + 1))
    if (config := deepest_config(Tile(*tile, split_k=split), StoreKind.TMA)) is not None
]
HARNESS = """
#include "fp8gemm/scheduler/split.cuh"

template <unsigned kN_, unsigned kK_, unsigned kBlockM_, unsigned kBlockN_, unsigned kWarpgroupsM_,
          unsigned kWarpgroupsN_, unsigned kSplitK_>
struct Config {
    static constexpr fp8gemm::uint32_t kN = kN_, kK = kK_, kBlockM = kBlockM_, kBlockN = kBlockN_, kBlockK = 128;
    static constexpr fp8gemm::uint32_t kWarpgroupsM = kWarpgroupsM_, kWarpgroupsN = kWarpgroupsN_, kWarpgroupsK = 1;
    static constexpr fp8gemm::uint32_t kClusterM = 1, kClusterN = 1, kSplitK = kSplitK_;
    static constexpr bool kHalfColumns = false;
};

template <class Config>
void part(unsigned m, unsigned cluster, unsigned rank, unsigned* values) {
    using Summed = fp8gemm::SummedConfig<Config>;
    fp8gemm::SplitSchedule<Config> schedule(m, cluster, 0, rank);
    typename fp8gemm::SplitSchedule<Config>::Tile tile;
    values[0] = schedule.next(tile) && tile.row_of_d() == tile.row_of_a();
    const unsigned all[] = {tile.m, tile.n, tile.first_col(), tile.first_k_block(), tile.steps(), tile.col_of_d()};
    for (unsigned i = 0; i < 6; ++i) {
        values[1 + i] = all[i];
    }
    for (unsigned warpgroup = 0; warpgroup < 2; ++warpgroup) {
        values[7 + warpgroup] = fp8gemm::WarpgroupOrigin<fp8gemm::TileShape<Summed>, Summed>(warpgroup).col;
    }
    values[9] = fp8gemm::TileShape<Summed>::kWarpgroupCols;
    values[10] = schedule.next(tile);
}

using Get = void(unsigned, unsigned, unsigned, unsigned*);
extern Get* const kParts[];

extern "C" void part_of(unsigned config, unsigned m, unsigned cluster, unsigned rank, unsigned* values) {
    kParts[config](m, cluster, rank, values);
}
"""

Parts = Callable[[int, int, int, int], list[int]]


def cases() -> list[tuple[TileConfig, int, int]]:
    return [(config, n, k) for config in CONFIGS for n, k in SHAPES]


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    entries = (
        f"part<Config<{n}, {k}, {config.block_m}, {config.block_n}, {config.warpgroups_m}, {config.warpgroups_n}, "
        f"{config.split_k}>>"
        for config, n, k in cases()
    )
    source = f"{HARNESS}\nGet* const kParts[] = {{{', '.join(entries)}}};\n"
    part_of = compile_for_host(source, tmp_path_factory.mktemp("split-tiles")).part_of
    part_of.argtypes = [ctypes.c_uint32] * 4 + [ctypes.c_void_p]

    def of(case: int, m: int, cluster: int, rank: int) -> list[int]:
        values = (ctypes.c_uint32 * 11)()
        part_of(case, m, cluster, rank, values)
        return list(values)

    return of


@settings(max_examples=200, deadline=None)
@given(case=st.integers(0, len(CONFIGS) * len(SHAPES) - 1), m=st.integers(1, 1000))
def test_each_k_block_and_each_column_of_a_tile_is_one_cta_s(parts: Parts, case: int, m: int) -> None:
    config, n, k = cases()[case]
    rows, cols = -(-m // config.block_m), -(-n // config.block_n)
    tiles = set()
    for cluster in range(rows * cols):
        of_cluster = [parts(case, m, cluster, rank) for rank in range(config.split_k)]
        assert all(given == 1 and again == 0 for given, *_, again in of_cluster)
        places = {(tile_m, tile_n) for _, tile_m, tile_n, *_ in of_cluster}
        assert len(places) == 1
        ((tile_m, tile_n),) = places
        tiles.add((tile_m, tile_n))
        blocks = Counter(block for values in of_cluster for block in range(values[4], values[4] + values[5]))
        assert set(blocks.values()) == {1} and set(range(-(-k // 128))) <= set(blocks)
        assert len(blocks) < -(-k // 128) + config.split_k, "a share is as short as equal shares can be"
        first = tile_n * config.block_n
        assert all(values[3] == first for values in of_cluster)
        written = Counter(
            values[6] + origin + col
            for values in of_cluster
            for origin in values[7 : 7 + config.warpgroups_n]
            for col in range(values[9])
        )
        assert written == Counter(range(first, first + config.block_n))
    assert tiles == set(product(range(rows), range(cols)))
