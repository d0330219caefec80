// The consumer: a warpgroup that multiplies K blocks on the tensor cores and promotes the results.
//
// The tensor core accumulates with about 14 fraction bits, so nothing may stay in it for longer than one K block.
// Promotion adds the block's sums, times the block's scales, to FP32 accumulators:
//     s = scale_a * scale_b;  acc = fma(s, block_sum, acc)
// in this association, with K blocks in ascending order: it is part of the library's contract. What a scale of B covers,
// and where it comes from, is the policy of Config::kScaling.
//
// NOTE: The two warpgroups of a CTA are not ordered against each other. Each waits for its own WGMMAs and promotes
// while the other's keep the tensor cores busy; orderings by barriers and double accumulators measured slower.
#pragma once

#include "fp8gemm/mainloop/block_scales.cuh"
#include "fp8gemm/mainloop/row_scales.cuh"
#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/wgmma.cuh"
#include "fp8gemm/scheduler/raster.cuh"

namespace fp8gemm {

template <class Config, Scaling kScaling>
struct ScalesOfB;

template <class Config>
struct ScalesOfB<Config, Scaling::kBlock> {
    using Type = BlockScales<Config>;
};

template <class Config>
struct ScalesOfB<Config, Scaling::kRow> {
    using Type = RowScales<Config>;
};

template <class Config>
class Multiplier {
    using Shape = TileShape<Config>;
    using Stages = OperandStages<Config>;
    using Ring = BarrierRing<Config::kStages>;
    using Scales = typename ScalesOfB<Config, Config::kScaling>::Type;
    using Wgmma = ptx::Wgmma<Shape::kWaveN>;
    static constexpr uint32_t kInstructionK = 32;
    /// Not the whole of a short K: with no loop left, the epilogue's addresses move up among the accumulators and spill.
    static constexpr uint32_t kUnroll = Shape::kNumKBlocks > 4 ? 4 : Shape::kNumKBlocks > 2 ? 2 : 1;

    Stages& stages_;
    Ring& ring_;
    const float* scales_b_;
    uint32_t lane_;
    uint32_t first_row_;     ///< of this thread in the CTA tile: the upper of the two rows it holds in each wave
    uint32_t first_col_;     ///< of this warpgroup in the CTA tile
    uint32_t descriptor_a_;  ///< of this warpgroup's rows in stage 0
    uint32_t descriptor_b_;  ///< of this warpgroup's columns in stage 0
    typename Ring::State state_ = Ring::State::for_reader();
    bool stage_is_full_ = false;  ///< whether a look ahead has already seen the stage of `state_` full

public:
    FP8GEMM_DEVICE Multiplier(Stages& stages, Ring& ring, const float* scales_b, uint32_t warpgroup, uint32_t warp)
        : stages_(stages), ring_(ring), scales_b_(scales_b), lane_(ptx::lane_index()) {
        const WarpgroupOrigin<Shape, Config> origin(warpgroup);
        first_row_ = origin.row + first_row_of_warp(warp) + lane_ / 4;
        first_col_ = origin.col;
        descriptor_a_ = descriptor_address(stages.a) + descriptor_offset(origin.row * Shape::kBlockK);
        descriptor_b_ = descriptor_address(stages.b) + descriptor_offset(origin.col * Shape::kBlockK);
    }

    /// Computes this warpgroup's part of one tile over the whole of K.
    FP8GEMM_DEVICE void run(TileCoordinate tile, typename Shape::Accumulators& accumulators) {
        clear(accumulators);
        Scales scales(scales_b_, stages_, tile, first_col_);
#pragma unroll kUnroll
        for (uint32_t k_block = 0; k_block < Shape::kNumKBlocks; ++k_block) {
            scales.take(k_block);
            if (!stage_is_full_) {
                ring_.wait_full(state_);
            }
            multiply_block(scales, accumulators);
        }
    }

private:
    FP8GEMM_DEVICE static void clear(typename Shape::Accumulators& accumulators) {
#pragma unroll
        for (uint32_t m = 0; m < Shape::kWavesM; ++m) {
#pragma unroll
            for (uint32_t n = 0; n < Shape::kWavesN; ++n) {
#pragma unroll
                for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) {
                    accumulators[m][n][i] = 0.0f;
                }
            }
        }
    }

    /// Multiplies and promotes the stage of `state_`, and moves on to the next.
    FP8GEMM_DEVICE void multiply_block(const Scales& scales, typename Shape::Accumulators& accumulators) {
        const uint32_t stage = state_.stage;
        float scales_a[Shape::kWavesM][2];
#pragma unroll
        for (uint32_t m = 0; m < Shape::kWavesM; ++m) {
            const float* source = &stages_.scales.a[stage][first_row_ + m * Shape::kWaveM];
            scales_a[m][0] = source[0];
            scales_a[m][1] = source[8];
        }
#pragma unroll
        for (uint32_t m = 0; m < Shape::kWavesM; ++m) {
#pragma unroll
            for (uint32_t n = 0; n < Shape::kWavesN; ++n) {
                const bool last_wave = m == Shape::kWavesM - 1 && n == Shape::kWavesN - 1;
                float block_sums[Shape::kWaveRegisters];
                start_wave(stage, m, n, block_sums);
                const typename Scales::Wave scales_b = scales.of_wave(stage, n);
                if (last_wave) {
                    look_ahead();
                }
                ptx::wgmma_wait<0>();
                ptx::touch_after_wait(block_sums);
                if (last_wave) {
                    release_stage(stage);
                }
                Scales::promote(scales_a[m], scales_b, block_sums, accumulators[m][n]);
            }
        }
    }

    /// Starts block_sums = the wave's product over one K block.
    FP8GEMM_DEVICE void start_wave(uint32_t stage, uint32_t m, uint32_t n, float (&block_sums)[Shape::kWaveRegisters]) {
        const uint32_t a =
            descriptor_a_ + descriptor_offset(stage * Stages::kBytesA + m * Shape::kWaveM * Shape::kBlockK);
        const uint32_t b =
            descriptor_b_ + descriptor_offset(stage * Stages::kBytesB + n * Shape::kWaveN * Shape::kBlockK);
        ptx::wgmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < Shape::kBlockK; k += kInstructionK) {
            Wgmma::multiply(block_sums, matrix_descriptor(a + descriptor_offset(k)),
                            matrix_descriptor(b + descriptor_offset(k)), k != 0);
        }
        ptx::wgmma_commit();
    }

    /// Asks for the next stage while the tensor cores are busy: nothing but the multiplication itself then stands
    /// between one block's promotion and the next block's WGMMAs (3 % of 4096x7168x16384, H200, 2026-11-20).
    FP8GEMM_DEVICE void look_ahead() {
        state_.advance();
        stage_is_full_ = ring_.is_full(state_);
    }

    /// One arrival per warp at every CTA that writes into this one's stage. All reads of the stage are behind: those of
    /// the operands by the wait for WGMMA, those of the scales by each lane before it joins its warp.
    FP8GEMM_DEVICE void release_stage(uint32_t stage) {
        __syncwarp();
        if constexpr (Shape::kClusterSize == 1) {
            if (lane_ == 0) {
                ptx::mbarrier_arrive(&ring_.empty[stage]);
            }
        } else if (lane_ < Shape::kClusterSize) {
            ptx::mbarrier_arrive_cluster(&ring_.empty[stage], lane_);
        }
    }
};

}  // namespace fp8gemm
