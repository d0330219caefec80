// Epilogue: brings the C of a tile into L2 while the tile is multiplied.
//
// CTAs come to their epilogues at about the same time. If they asked for C only then, memory would have nothing to do
// before and too much at once.
//
// What threads will read the store warps ask for, which have nothing else to do meanwhile: a little at a time, so that
// operands, whose loads nobody can afford to delay, do not queue behind it. What L2 will add to, which lies where the output's
// map says, the load thread asks for behind the operands of the tile's last steps: it knows when these are. Asked for
// sooner, some of it would have left L2 again (docs/tuning.md, "Epilogues and scalings").
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/epilogue/element.cuh"
#include "fp8gemm/epilogue/staged_parts.cuh"
#include "fp8gemm/ptx/memory.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"

namespace fp8gemm {

/// By the store warps, for outputs that are stored by TMA: rows of C are contiguous then.
template <class Config>
class MatrixPrefetch {
    using Shape = TileShape<Config>;
    using Storage = typename AddendElement<Config::kC>::Storage;

    static constexpr uint32_t kLineCols = 128 / sizeof(Storage);
    static constexpr uint32_t kLinesOfRow = ceil_div(Shape::kWarpgroupCols, kLineCols);
    static constexpr uint32_t kLines = Shape::kWarpgroupRows * kLinesOfRow;
    /// A third of what the fastest K block takes, because a pause may become twice as long as it was asked for.
    static constexpr uint32_t kNanosecondsPerStep = Shape::kBlockM * Shape::kBlockN / 128;

public:
    static constexpr bool kThere = true;

    /// By a whole warp, for the part of a tile that is a warpgroup's.
    template <class Params, class Tile>
    static FP8GEMM_DEVICE void run(const Params& params, const Tile& tile, WarpgroupOrigin<Shape, Config> origin) {
        const auto* c = static_cast<const Storage*>(params.c);
        const uint32_t end = tile.end_of_d(params.m);
        const uint32_t pause = tile.steps() * kNanosecondsPerStep * kThreadsPerWarp / kLines;
#pragma unroll 1
        for (uint32_t line = ptx::lane_index(); line < kLines; line += kThreadsPerWarp) {
            const uint32_t row = tile.row_of_d() + origin.row + line / kLinesOfRow;
            const uint32_t col = tile.col_of_d() + origin.col + line % kLinesOfRow * kLineCols;
            if (row < end && col < Config::kN) {
                ptx::prefetch_l2(c + row * params.c_stride_m + col);
            }
            ptx::pause(pause);
        }
        __syncwarp();
    }
};

/// By the store warps, where threads read no C.
struct NoPrefetch {
    static constexpr bool kThere = false;

    template <class Params, class Tile, class Origin>
    static FP8GEMM_DEVICE void run(const Params&, const Tile&, Origin) {}
};

template <class Config>
using AddendPrefetch = Conditional<is_read(Config::kC), MatrixPrefetch<Config>, NoPrefetch>;

/// By the load thread, where L2 adds to what is there.
template <class Config>
class BoxPrefetch {
    using Shape = TileShape<Config>;
    using Parts = StagedParts<Config>;
    static constexpr uint32_t kBoxes = Shape::kWarpgroups * Parts::kCount;
    /// 16 KB a step: in twice or half as many steps weight gradients take up to 1 % longer (H200, 2026-11-29).
    static constexpr uint32_t kBoxesOfStep = 4096 / (Parts::kRows * Parts::kCols);

    const TensorMap& d_map_;
    uint32_t rows_;  ///< of A
    uint32_t next_ = 0;

public:
    template <class Params>
    FP8GEMM_DEVICE explicit BoxPrefetch(const Params& params) : d_map_(params.d_map), rows_(params.m) {}

    FP8GEMM_DEVICE void begin_tile() { next_ = 0; }

    /// Behind the loads of a tile's step that so many steps follow.
    template <class Tile>
    FP8GEMM_DEVICE void run(const Tile& tile, uint32_t steps_left) {
#pragma unroll 1
        for (; next_ + steps_left * kBoxesOfStep < kBoxes; ++next_) {
            const WarpgroupOrigin<Shape, Config> origin(next_ / Parts::kCount);
            const uint32_t part = next_ % Parts::kCount;
            const uint32_t row = tile.row_of_d() + origin.row + part / Parts::kAcross * Parts::kRows;
            const uint32_t col = tile.col_of_d() + origin.col + part % Parts::kAcross * Parts::kCols;
            if (row < tile.end_of_d(rows_)) {
                ptx::tma_prefetch_2d(d_map_, col, row);
            }
        }
    }
};

/// By the load thread, where L2 adds to nothing.
struct NoBoxPrefetch {
    template <class Params>
    FP8GEMM_DEVICE explicit NoBoxPrefetch(const Params&) {}

    FP8GEMM_DEVICE void begin_tile() {}

    template <class Tile>
    FP8GEMM_DEVICE void run(const Tile&, uint32_t) {}
};

template <class Config>
using OutputPrefetch = Conditional<Config::kC == Addend::kInPlace, BoxPrefetch<Config>, NoBoxPrefetch>;

}  // namespace fp8gemm
