// The last round of a persistent schedule, of which few CTAs would have a tile.
//
// With Config::kHalfColumns, where that is at most half of them, each of its tiles is divided between two: both have all of its
// rows, and each half of its columns. They read A together and each column of B once, and all CTAs of the round go at one
// pace. With seven CTAs and nine tiles:
//
//     CTA            0     1     2     3     4     5     6
//     round 0        0     1     2     3     4     5     6
//     round 1        7l    7r    8l    8r
//
// A round that is the only one is not divided: as many CTAs with smaller tiles do better.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm {

/// Which columns of its tile are a CTA's: all, or in a divided round those of one half.
template <bool kMayBeHalf>
struct ColumnsOfTile {
    bool is_half_wide;
    uint32_t cols_before;  ///< of the tile, that are the other CTA's

    FP8GEMM_HOST_DEVICE void take_all() {
        is_half_wide = false;
        cols_before = 0;
    }
    FP8GEMM_HOST_DEVICE void take_half(uint32_t first_col) {
        is_half_wide = true;
        cols_before = first_col;
    }
};

template <>
struct ColumnsOfTile<false> {
    static constexpr bool is_half_wide = false;
    static constexpr uint32_t cols_before = 0;

    FP8GEMM_HOST_DEVICE void take_all() {}
};

/// The first tile of a round that is divided: the last one, if it has so few; else one behind all.
FP8GEMM_HOST_DEVICE uint32_t first_tile_divided(uint32_t tiles, uint32_t num_ctas) {
    if (tiles <= num_ctas) {
        return tiles;
    }
    const uint32_t left = tiles % num_ctas;
    return left <= num_ctas / 2 ? tiles - left : tiles;
}

}  // namespace fp8gemm
