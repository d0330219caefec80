// The order of tiles of which each cluster computes one, its CTAs dividing K.
//
// Tiles of the same rows of B follow each other, so that what few tokens are past a tile's width find the weight in L2.
#pragma once

#include "fp8gemm/scheduler/raster.cuh"

namespace fp8gemm {

struct SplitTile {
    TileCoordinate tile;  ///< in tiles
    uint32_t rank;        ///< the CTA's share of K
};

/// What the CTA of an index computes, of ceil(m / block_m) rows of tiles.
template <class Config>
FP8GEMM_HOST_DEVICE SplitTile split_tile(uint32_t index, uint32_t m) {
    const uint32_t num_m = ceil_div(m, Config::kBlockM);
    const uint32_t cluster = index / Config::kSplitK;
    return SplitTile{{cluster % num_m, cluster / num_m}, index % Config::kSplitK};
}

}  // namespace fp8gemm
