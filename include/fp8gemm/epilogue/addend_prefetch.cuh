// Epilogue: brings the C of a tile into L2 while the tile is multiplied.
//
// CTAs come to their epilogues at about the same time. If they asked for C only then, memory would have nothing to do
// before and too much at once. The store warp, which has nothing to do meanwhile either, asks for it a little at a time,
// so that operands, whose loads nobody can afford to delay, do not queue behind it.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/epilogue/element.cuh"
#include "fp8gemm/ptx/memory.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

/// For outputs that are stored by TMA: rows of C are contiguous then.
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

/// Where there is no C to bring.
struct NoPrefetch {
    static constexpr bool kThere = false;

    template <class Params, class Tile, class Origin>
    static FP8GEMM_DEVICE void run(const Params&, const Tile&, Origin) {}
};

/// L2 adds to what it has, too, 1 to 4 % sooner with tiles of 128x128; but groups of columns, with wide waves, 2 % later
/// (bursts, H200, 2026-11-26).
template <class Config>
constexpr bool kBringsAddend =
    is_read(Config::kC) || (Config::kC == Addend::kInPlace &&
                            (Config::kGrouping != Grouping::kColumns || TileShape<Config>::kWaveRegisters <= 64));

template <class Config>
using AddendPrefetch = Conditional<kBringsAddend<Config>, MatrixPrefetch<Config>, NoPrefetch>;

}  // namespace fp8gemm
