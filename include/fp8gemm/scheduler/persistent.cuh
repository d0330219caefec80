// The persistent schedule: the grid is as large as the GPU, and each cluster takes every num_clusters-th cluster tile.
//
// Every warp role walks its own copy of the schedule, so no role has to tell another which tile comes next.
// A cluster tile is kClusterM x kClusterN CTA tiles, one for each CTA. Those past the edge of the output are stored nowhere,
// and with block scales, behind the last row, not multiplied either; but the CTA must load its share of what the cluster multicasts.
#pragma once

#include "fp8gemm/scheduler/last_round.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

template <class Config>
struct PersistentSchedule {
    using Tile = PlainTile<Config>;

    static constexpr uint32_t kClusterTileM = Config::kBlockM * Config::kClusterM;
    static constexpr uint32_t kClusterTileN = Config::kBlockN * Config::kClusterN;
    static constexpr uint32_t kNumN = ceil_div(Config::kN, kClusterTileN);

    uint32_t num_m;
    uint32_t index;
    uint32_t num_clusters;
    uint32_t rank;
    uint32_t first_divided;  ///< with Config::kHalfColumns, of the tiles that are divided: last_round.cuh

    FP8GEMM_HOST_DEVICE PersistentSchedule(uint32_t m, uint32_t cluster, uint32_t num_clusters, uint32_t rank)
        : num_m(ceil_div(m, kClusterTileM)), index(cluster), num_clusters(num_clusters), rank(rank) {
        if constexpr (Config::kHalfColumns) {
            first_divided = first_tile_divided(num_m * kNumN, num_clusters);
        }
    }

    /// Gives this CTA's next tile, in units of CTA tiles; false when there is none.
    FP8GEMM_HOST_DEVICE bool next(Tile& tile) {
        uint32_t place = index;
        tile.take_all();
        if constexpr (Config::kHalfColumns) {
            if (index >= first_divided) {
                const uint32_t half = index - first_divided;
                place = first_divided + half / 2;
                tile.take_half(half % 2 * (Config::kBlockN / 2));
            }
        }
        if (place >= num_m * kNumN) {
            return false;
        }
        const TileCoordinate cluster_tile = banded_raster(place, num_m, kNumN, Config::kRasterBand);
        tile.m = cluster_tile.m * Config::kClusterM + rank / Config::kClusterN;
        tile.n = cluster_tile.n * Config::kClusterN + rank % Config::kClusterN;
        index += num_clusters;
        return !tile.is_half_wide || tile.first_col() < Config::kN;
    }
};

}  // namespace fp8gemm
