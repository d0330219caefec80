// Where the accumulators that a thread holds lie in the output.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

/// A rectangle of a warpgroup's tile, whole waves high and a multiple of 16 columns wide. Its size is a type, so that
/// loops over it unroll and accumulators are indexed by constants.
template <uint32_t kRows, uint32_t kCols>
struct Part {
    uint32_t row;
    uint32_t col;
};

/// One thread's view of its warpgroup's accumulators as pairs of neighbouring columns.
template <class Config>
class Fragment {
    using Shape = TileShape<Config>;

    uint32_t warp_row_;  ///< of the warp in the CTA tile
    uint32_t warp_col_;

public:
    using WholeTile = Part<Shape::kWarpgroupRows, Shape::kWarpgroupCols>;

    FP8GEMM_DEVICE Fragment(uint32_t warpgroup, uint32_t warp) {
        const WarpgroupOrigin<Shape, Config> origin(warpgroup);
        warp_row_ = origin.row + first_row_of_warp(warp);
        warp_col_ = origin.col;
    }

    /// Calls visit(row, col, first, second) for each pair of a part, of which `first` is the element at (row, col) of the
    /// output and `second` its right neighbour; `col` is even. Places past the edges of the output are visited too.
    template <class Tile, uint32_t kRows, uint32_t kCols, class Accumulators, class Visitor>
    FP8GEMM_DEVICE void for_each_pair(const Tile& tile, Part<kRows, kCols> part, Accumulators& accumulators,
                                      const Visitor& visit) const {
#pragma unroll
        for (uint32_t row = 0; row < kRows; row += Shape::kWaveM) {
#pragma unroll
            for (uint32_t col = 0; col < kCols; col += kStripCols) {
                visit_strip(tile, part.row + row, part.col + col, accumulators, visit);
                // NOTE: Keeps the compiler from gathering the loads and addresses of all strips at the beginning, where
                // the accumulators leave no registers for them.
                __syncwarp();
            }
        }
    }

private:
    static constexpr uint32_t kStripCols = greatest_common_divisor(Shape::kWaveN, 32u);

    template <class Tile, class Accumulators, class Visitor>
    FP8GEMM_DEVICE void visit_strip(const Tile& tile, uint32_t row, uint32_t col, Accumulators& accumulators,
                                    const Visitor& visit) const {
        const uint32_t lane = ptx::lane_index();
        const uint32_t first_row = tile.row_of_d() + warp_row_ + row + lane / 4;
        const uint32_t first_col = tile.col_of_d() + warp_col_ + col + lane % 4 * 2;
#pragma unroll
        for (uint32_t i = 0; i < kStripCols; i += 8) {
            auto* pairs = &accumulators[row / Shape::kWaveM][col / Shape::kWaveN][(col + i) % Shape::kWaveN / 2];
            visit(first_row, first_col + i, pairs[0], pairs[1]);
            visit(first_row + 8, first_col + i, pairs[2], pairs[3]);
        }
    }
};

}  // namespace fp8gemm
