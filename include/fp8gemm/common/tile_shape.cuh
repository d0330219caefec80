// How a CTA's output tile is divided among warpgroups, and a warpgroup's part into waves.
//
// Warpgroups divide its rows, its columns, or the K blocks of each stage. Sharing K gives narrow tiles waves of their
// whole width, which read less from shared memory for each product; it costs an addition at the end of a tile.
//
// The CTAs of a cluster can divide K too, where there are fewer tiles than SMs: each multiplies its K blocks of the tile,
// then sums and writes its share of every warpgroup's columns (split_reduction.cuh).
//
// A wave is what one chain of WGMMAs computes: 64 rows by at most 192 columns. Its block sums need a register for
// every accumulator of the wave, on top of those of the whole tile, so the widest parts are two waves wide.
#pragma once

#include "fp8gemm/common/math.cuh"

namespace fp8gemm {

constexpr uint32_t kThreadsPerWarp = 32;
constexpr uint32_t kWarpsPerWarpgroup = 4;
constexpr uint32_t kThreadsPerWarpgroup = 128;
constexpr uint32_t kRowsPerWarp = 16;   ///< of a 64-row wave that the accumulators of one warp hold
constexpr uint32_t kScaleBlock = 128;   ///< K columns, and weight rows, that share one scale
constexpr uint32_t kScalesOfPiece = 4;  ///< in 16 bytes

template <class Config>
struct TileShape {
    static constexpr uint32_t kBlockM = Config::kBlockM;
    static constexpr uint32_t kBlockN = Config::kBlockN;
    static constexpr uint32_t kBlockK = Config::kBlockK;
    static constexpr uint32_t kNumKBlocks = ceil_div(Config::kK, kBlockK);
    static constexpr uint32_t kSharesOfK = Config::kWarpgroupsK * Config::kSplitK;
    /// Stages that a CTA's part of a tile takes: each holds one K block of every warpgroup's share. In the last ones, some
    /// may lie past the end of K and are zeros.
    static constexpr uint32_t kNumSteps = ceil_div(kNumKBlocks, kSharesOfK);

    static constexpr uint32_t kWarpgroupsOfShare = Config::kWarpgroupsM * Config::kWarpgroupsN;
    static constexpr uint32_t kWarpgroups = kWarpgroupsOfShare * Config::kWarpgroupsK;
    static constexpr uint32_t kWarpgroupRows = kBlockM / Config::kWarpgroupsM;
    static constexpr uint32_t kWarpgroupCols = kBlockN / Config::kWarpgroupsN;

    static constexpr uint32_t kWaveM = 64;
    static constexpr uint32_t kWaveN = kWarpgroupCols <= 192 ? kWarpgroupCols : kWarpgroupCols / 2;
    static constexpr uint32_t kWavesM = kWarpgroupRows / kWaveM;
    static constexpr uint32_t kWavesN = kWarpgroupCols / kWaveN;
    static constexpr uint32_t kWaveRegisters = kWaveM * kWaveN / kThreadsPerWarpgroup;

    /// CTAs that load operands for each other, and those of a cluster, which may divide K instead.
    static constexpr uint32_t kSharers = Config::kClusterM * Config::kClusterN;
    static constexpr uint32_t kClusterSize = kSharers * Config::kSplitK;

    /// Whether a warpgroup's part that has no rows is passed over: where a cluster's CTAs keep step. Alone, a CTA that has
    /// less to do than its neighbours runs ahead of them, and what they shared in L2 is read twice (-8 % in groups, H200,
    /// 2026-11-24). Not with row scales of B: groups of columns have all rows, and beside two waves in flight the branch
    /// costs 4 % of 7168x16384x4096, since the ring's stage is no longer in uniform registers (H200, 2026-11-26).
    static constexpr bool kPassesOver = Config::kClusterM > 1 && Config::kScaling == Scaling::kBlock;

    static_assert(kBlockK == kScaleBlock, "promotion happens once per K block, so a K block is one scale block");
    static_assert(kBlockM % (Config::kWarpgroupsM * kWaveM) == 0, "rows divide into 64-row waves");
    static_assert(kBlockN % Config::kWarpgroupsN == 0 && kWarpgroupCols % kWaveN == 0, "columns divide into waves");
    static_assert(kWaveN % 16 == 0, "the epilogue stages 16 columns at a time");
    static_assert(kSharers == 1 || Config::kSplitK == 1, "a cluster shares operands or divides K");
    static_assert(!Config::kHalfColumns ||
                      (kClusterSize == 1 && kWavesN == 2 && kWaveN == kScaleBlock && kWarpgroupCols == kBlockN),
                  "half of a tile is one of two waves of each warpgroup, of a CTA of its own");

    /// Accumulators of one thread: one row of registers per wave.
    using Accumulators = float[kWavesM][kWavesN][kWaveRegisters];

    /// Which share of K is a warpgroup's: it has that K block of every stage.
    static FP8GEMM_HOST_DEVICE constexpr uint32_t share_of(uint32_t warpgroup) {
        return Config::kWarpgroupsK == 1 ? 0 : warpgroup / kWarpgroupsOfShare;
    }
};

/// Where columns may cross from one scale block to the next: the first and the last place.
struct Borders {
    uint32_t least;
    uint32_t largest;
};

template <class Config>
struct SummedConfig : Config {
    static constexpr uint32_t kBlockN = Config::kBlockN / Config::kSplitK;
    static constexpr uint32_t kSplitK = 1;
    static constexpr uint32_t kWarpgroupsN = Config::kWarpgroupsN * Config::kWarpgroupsK;
    static constexpr uint32_t kWarpgroupsK = 1;
};

/// A config as the epilogue sees it: once the shares of K are added up, the warpgroups or CTAs that had them divide the
/// columns.
template <class Config>
using Summed = Conditional<Config::kWarpgroupsK * Config::kSplitK == 1, Config, SummedConfig<Config>>;

/// Columns from one warpgroup's part of the tile to the next one's.
template <class Config>
constexpr uint32_t kWarpgroupPitch = Config::kBlockN / Config::kWarpgroupsN;
/// Between them may be columns that other CTAs sum.
template <class Config>
constexpr uint32_t kWarpgroupPitch<SummedConfig<Config>> = Config::kBlockN / SummedConfig<Config>::kWarpgroupsN;

/// The first row of a wave that a warp holds; `warp` counts through the CTA.
FP8GEMM_HOST_DEVICE uint32_t first_row_of_warp(uint32_t warp) {
    return warp % kWarpsPerWarpgroup * kRowsPerWarp;
}

/// Where one warpgroup's part lies inside the CTA's tile.
template <class Shape, class Config>
struct WarpgroupOrigin {
    uint32_t row;
    uint32_t col;

    FP8GEMM_HOST_DEVICE explicit WarpgroupOrigin(uint32_t warpgroup)
        : row(warpgroup % Shape::kWarpgroupsOfShare / Config::kWarpgroupsN * Shape::kWarpgroupRows),
          col(warpgroup % Config::kWarpgroupsN * kWarpgroupPitch<Config>) {}
};

}  // namespace fp8gemm
