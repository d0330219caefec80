// Swapped operands: rows of the weight B go to the 64-row side of WGMMA, rows of A (tokens) to its other side, in steps
// of 8. So few tokens cost few columns instead of a 64-row wave of padding.
//
// A tile of fewer than 64 weight rows fills the 64 rows with several K blocks, side by side as slices:
//
//     B of the tile, as WGMMA's A                   tokens, as WGMMA's B             what WGMMA computes
//     rows  0-15   16 weight rows, K block 0        8 tokens, K block 0              slice 0 | .   .   .
//     rows 16-31   the same rows,  K block 1        8 tokens, K block 1                .  slice 1 .   .
//     rows 32-47   the same rows,  K block 2        8 tokens, K block 2                .   .  slice 2 .
//     rows 48-63   the same rows,  K block 3        8 tokens, K block 3                .   .   . slice 3
//
// Only the blocks on the diagonal mean anything; the rest is work that the tensor cores have time for while the weight
// is on its way. What it buys is a tile of 16 rows with the whole of K in one CTA: where peers divide K over a cluster to
// occupy all SMs and add up the shares between CTAs, the shares here are warps of one CTA.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"

namespace fp8gemm {

template <class Config>
struct SwapAbShape {
    static constexpr uint32_t kTokens = Config::kBlockM;  ///< rows of A and of the output
    static constexpr uint32_t kRows = Config::kBlockN;    ///< rows of B, columns of the output
    static constexpr uint32_t kWaveRows = 64;
    static constexpr uint32_t kSlices = kWaveRows / kRows;     ///< K blocks that a WGMMA multiplies side by side
    static constexpr uint32_t kWaveCols = kTokens * kSlices;   ///< n of the instruction
    static constexpr uint32_t kWaveRegisters = kWaveCols / 2;  ///< of a thread
    /// Consecutive warps that hold the rows of the tile in one K block.
    static constexpr uint32_t kWarpsPerBlock = kRows / kRowsPerWarp;

    static constexpr uint32_t kNumKBlocks = ceil_div(Config::kK, Config::kBlockK);
    static constexpr uint32_t kBlocksPerStage = kSlices * Config::kWarpgroupsK;
    /// Stages that each CTA of a cluster multiplies. The last ones may lie past the end of K and are zeros.
    static constexpr uint32_t kSteps = ceil_div(kNumKBlocks, kBlocksPerStage* Config::kSplitK);
    static constexpr uint32_t kBlocksOfCta = kSteps * kBlocksPerStage;
    /// Parts of K that are added up at the end, in this order: of CTAs, then warpgroups, then slices.
    static constexpr uint32_t kShares = Config::kSplitK * kBlocksPerStage;

    static constexpr uint32_t kConsumers = Config::kWarpgroupsK * kThreadsPerWarpgroup;
    static constexpr uint32_t kLoadWarp = Config::kWarpgroupsK * kWarpsPerWarpgroup;
    static constexpr uint32_t kThreads = kConsumers + kThreadsPerWarp;

    /// Rows of B's scales, one for 128 of B's, of the n-th tile.
    static FP8GEMM_HOST_DEVICE constexpr uint32_t row_of_scales_b(uint32_t n) { return n * kRows / kScaleBlock; }

    static_assert(Config::kBlockK == kScaleBlock,
                  "promotion happens once per K block, so a K block is one scale block");
    static_assert(kRows == 16 || kRows == 32 || kRows == 64, "whole warps hold the rows of a slice");
    static_assert(kTokens % 8 == 0, "the output columns of WGMMA come in eights");
};

}  // namespace fp8gemm
