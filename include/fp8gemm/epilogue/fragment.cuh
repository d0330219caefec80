// Where the accumulators that a thread holds lie in the output.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

/// A rectangle of a warpgroup's tile, a wave high and a multiple of 16 columns wide. Its size is a type, so that loops
/// over it unroll and accumulators are indexed by constants.
template <uint32_t kCols>
struct Part {
    uint32_t row;
    uint32_t col;
};

/// One thread's view of its warpgroup's accumulators: of every 8 columns of a part it holds two neighbours, in a row and
/// in the 8th row after it.
template <class Config>
class Fragment {
    using Shape = TileShape<Config>;

    uint32_t warp_row_;  ///< of the warp in the CTA tile
    uint32_t warp_col_;

public:
    FP8GEMM_DEVICE Fragment(uint32_t warpgroup, uint32_t warp) {
        const WarpgroupOrigin<Shape, Config> origin(warpgroup);
        warp_row_ = origin.row + first_row_of_warp(warp);
        warp_col_ = origin.col;
    }

    /// The upper row of a part's values in the output; the lower is the 8th after it. Either may be past the last one.
    template <class Tile, uint32_t kCols>
    FP8GEMM_DEVICE uint32_t row(const Tile& tile, Part<kCols> part) const {
        return tile.row_of_d() + warp_row_ + part.row + ptx::lane_index() / 4;
    }

    /// The first column of a part's values in the output, an even one; may be past the last one.
    template <class Tile, uint32_t kCols>
    FP8GEMM_DEVICE uint32_t col(const Tile& tile, Part<kCols> part) const {
        return tile.col_of_d() + warp_col_ + part.col + ptx::lane_index() % 4 * 2;
    }

    /// The values in columns 8 i and up of a part: the two of the upper row, then those of the lower.
    template <class Accumulators, uint32_t kCols>
    static FP8GEMM_DEVICE auto* values(Accumulators& accumulators, Part<kCols> part, uint32_t i) {
        const uint32_t col = part.col + 8 * i;
        return &accumulators[part.row / Shape::kWaveM][col / Shape::kWaveN][col % Shape::kWaveN / 2];
    }
};

}  // namespace fp8gemm
