// The schedule where CTAs divide K: a cluster for each tile, so that nothing that the CTAs exchange is used twice.
#pragma once

#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

template <class Config>
struct SplitSchedule {
    using Tile = SplitTilePart<Config>;

    uint32_t num_m;
    uint32_t index;
    uint32_t rank;
    bool is_given = false;

    /// The grid has a cluster for each tile: `cluster` is the tile's index.
    FP8GEMM_HOST_DEVICE SplitSchedule(uint32_t m, uint32_t cluster, uint32_t, uint32_t rank)
        : num_m(ceil_div(m, Config::kBlockM)), index(cluster), rank(rank) {}

    /// Gives the cluster's tile, and this CTA's share of it, once.
    FP8GEMM_HOST_DEVICE bool next(Tile& tile) {
        if (is_given) {
            return false;
        }
        tile.m = index % num_m;
        tile.n = index / num_m;
        tile.share = rank;
        is_given = true;
        return true;
    }
};

}  // namespace fp8gemm
