// Promotion with one scale per 128x128 block of B: a wave of one warpgroup has a single scale of B per K block.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/scheduler/raster.cuh"

namespace fp8gemm {

/// One warpgroup's reader of the block scales.
///
/// Each lane loads the scale of another K block, so one coalesced load covers 32 of them, and a shuffle hands out the one
/// in use. The next 32 are loaded 32 blocks ahead, so that no block waits for device memory.
template <class Config>
class BlockScales {
    using Shape = TileShape<Config>;
    static constexpr uint32_t kNumNBlocks = ceil_div(Config::kN, kScaleBlock);

    const float* rows_[Shape::kWavesN];
    float chunk_[Shape::kWavesN];
    float next_[Shape::kWavesN];
    float current_[Shape::kWavesN];

public:
    /// What promotion needs of a wave's scales of B.
    using Wave = float;

    /// `scales` is (ceil(N / 128), ceil(K / 128)), row-major; `first_col` the warpgroup's first column in the CTA tile.
    FP8GEMM_DEVICE BlockScales(const float* scales, const OperandStages<Config>&, TileCoordinate tile,
                               uint32_t first_col) {
#pragma unroll
        for (uint32_t wave = 0; wave < Shape::kWavesN; ++wave) {
            // A wave past the last column multiplies zeros; any scale that may be read will do.
            const uint32_t col = tile.n * Shape::kBlockN + first_col + wave * Shape::kWaveN;
            const uint32_t block = minimum(col / kScaleBlock, kNumNBlocks - 1);
            rows_[wave] = scales + block * Shape::kNumKBlocks;
            chunk_[wave] = load(wave, 0);
            next_[wave] = load(wave, kThreadsPerWarp);
        }
    }

    /// Makes the scales of `k_block` current, which must ascend by one from call to call.
    FP8GEMM_DEVICE void take(uint32_t k_block) {
        const uint32_t lane = k_block % kThreadsPerWarp;
#pragma unroll
        for (uint32_t wave = 0; wave < Shape::kWavesN; ++wave) {
            if (Shape::kNumKBlocks > kThreadsPerWarp && lane == 0 && k_block != 0) {
                chunk_[wave] = next_[wave];
                next_[wave] = load(wave, k_block + kThreadsPerWarp);
            }
            current_[wave] = __shfl_sync(0xffffffffu, chunk_[wave], lane);
        }
    }

    FP8GEMM_DEVICE Wave of_wave(uint32_t, uint32_t wave) const { return current_[wave]; }

    /// `scales_a` are those of this thread's upper and lower row of the wave.
    FP8GEMM_DEVICE static void promote(const float (&scales_a)[2], Wave scale_b,
                                       const float (&block_sums)[Shape::kWaveRegisters],
                                       float (&accumulators)[Shape::kWaveRegisters]) {
        const float upper = scales_a[0] * scale_b;
        const float lower = scales_a[1] * scale_b;
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters; i += 4) {
            accumulators[i + 0] = __fmaf_rn(upper, block_sums[i + 0], accumulators[i + 0]);
            accumulators[i + 1] = __fmaf_rn(upper, block_sums[i + 1], accumulators[i + 1]);
            accumulators[i + 2] = __fmaf_rn(lower, block_sums[i + 2], accumulators[i + 2]);
            accumulators[i + 3] = __fmaf_rn(lower, block_sums[i + 3], accumulators[i + 3]);
        }
    }

private:
    FP8GEMM_DEVICE float load(uint32_t wave, uint32_t first_k_block) const {
        const uint32_t k_block = first_k_block + ptx::lane_index();
        return k_block < Shape::kNumKBlocks ? __ldg(rows_[wave] + k_block) : 0.0f;
    }
};

}  // namespace fp8gemm
