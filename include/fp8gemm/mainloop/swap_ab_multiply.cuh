// The consumer of the swapped orientation: a warpgroup that multiplies its K blocks of each stage and promotes the results.
//
// Of what a WGMMA computes a warp's rows are one slice; it promotes all columns as if they were that slice's, and
// whoever takes the sums takes the columns of the slice (see swap_ab_shape.cuh).
//
// Two waves are in flight inside a chunk of stages; none crosses the back edge of the loop of chunks.
#pragma once

#include "fp8gemm/mainloop/pipelined.cuh"
#include "fp8gemm/mainloop/scale_products.cuh"
#include "fp8gemm/mainloop/swap_ab_stage.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/wgmma.cuh"

namespace fp8gemm {

/// All steps up to `longest`, or else of 4 to `longest` what leaves the shortest rest, so that most kernels have no code
/// for one.
FP8GEMM_HOST_DEVICE constexpr uint32_t chunk_of(uint32_t steps, uint32_t longest) {
    uint32_t best = minimum(longest, steps);
    for (uint32_t chunk = best - 1; chunk >= 4; --chunk) {
        if (steps % chunk < steps % best) {
            best = chunk;
        }
    }
    return best;
}

/// `kRefills`: stages are filled more than once, and therefore handed back.
template <class Config, bool kRefills>
class SwapAbMultiplier {
    using Shape = SwapAbShape<Config>;
    using Stages = SwapAbStages<Config>;
    using Ring = typename Stages::Ring;
    using Wgmma = ptx::Wgmma<Shape::kWaveCols>;
    using ScalesOfBlock = typename ScaleProducts<Config>::OfBlock;
    /// Of wide waves fewer are unrolled, because they take the compiler long.
    static constexpr uint32_t kChunk = chunk_of(Shape::kSteps, Shape::kWaveCols > 96 ? 4 : 8);
    static constexpr uint32_t kTokenGroups = Shape::kTokens / 8;

public:
    // What `pipelined` asks for; `start`, `release` and `promote` are below. A step is a stage.
    static constexpr uint32_t kInFlight = 2;
    static constexpr uint32_t kWavesPerStep = 1;
    static constexpr uint32_t kSteps = Shape::kSteps;
    static constexpr bool kPromotionReadsStage = false;

    struct Chunk {
        uint32_t first_step;
    };

    /// A wave that has been started.
    struct Flight {
        float block_sums[Shape::kWaveRegisters];
        float products[kTokenGroups][2];
        uint32_t stage;
    };
    using Flights = Flight[kInFlight];

private:
    Stages& stages_;
    const ScalesOfBlock (&scales_)[Shape::kBlocksOfCta];
    uint32_t block_;    ///< of a stage that is this warp's
    uint64_t weights_;  ///< descriptors of this warpgroup's operands in stage 0
    uint64_t tokens_;
    typename Ring::State state_ = Ring::State::for_reader();

public:
    using Sums = float[Shape::kWaveRegisters];

    FP8GEMM_DEVICE SwapAbMultiplier(Stages& stages, const ScalesOfBlock (&scales)[Shape::kBlocksOfCta], uint32_t warp)
        : stages_(stages), scales_(scales) {
        const uint32_t warpgroup = warp / kWarpsPerWarpgroup;
        block_ = warp / Shape::kWarpsPerBlock;
        weights_ = matrix_descriptor(stages.weights[0] + warpgroup * Shape::kSlices * Stages::kWeightBlockBytes);
        tokens_ = matrix_descriptor(stages.tokens[0] + warpgroup * Shape::kSlices * Stages::kTokenBlockBytes);
    }

    /// Multiplies the next tile of which there are stages.
    FP8GEMM_DEVICE void run(Sums& sums) {
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) {
            sums[i] = 0.0f;
        }
        constexpr uint32_t kRest = Shape::kSteps % kChunk;
#pragma unroll 1
        for (uint32_t step = 0; step < Shape::kSteps - kRest; step += kChunk) {
            pipelined<kChunk, 0>(*this, Chunk{step}, sums);
        }
        if constexpr (kRest > 0) {
            pipelined<kRest, 0>(*this, Chunk{Shape::kSteps - kRest}, sums);
        }
    }

    /// Waits for the step's stage.
    template <uint32_t kWaves>
    FP8GEMM_DEVICE void start(uint32_t wave, Chunk chunk, Flights& flights) {
        Flight& flight = flights[wave % kInFlight];
        stages_.ring.wait_full(state_);
        flight.stage = state_.stage;
        ptx::wgmma_fence();
        Wgmma::multiply(flight.block_sums, in_stage(weights_, flight.stage, Stages::kWeightBytes),
                        in_stage(tokens_, flight.stage, Stages::kTokenBytes));
        ptx::wgmma_commit();
        const float* products =
            scales_[(chunk.first_step + wave) * Shape::kBlocksPerStage + block_] + ptx::lane_index() % 4 * 2;
#pragma unroll
        for (uint32_t group = 0; group < kTokenGroups; ++group) {
            const float2 pair = *reinterpret_cast<const float2*>(products + group * 8);
            flight.products[group][0] = pair.x;
            flight.products[group][1] = pair.y;
        }
        state_.advance();
    }

    /// No load reads a stage: that WGMMA has read it is enough.
    FP8GEMM_DEVICE void release(uint32_t wave, Chunk, const Flights& flights) {
        if constexpr (kRefills) {
            __syncwarp();
            if (ptx::lane_index() == 0) {
                ptx::mbarrier_arrive(&stages_.ring.empty[flights[wave % kInFlight].stage]);
            }
        }
    }

    template <uint32_t kLater>
    FP8GEMM_DEVICE void promote(uint32_t wave, Chunk, const Flights& flights, Sums& sums) {
        const Flight& flight = flights[wave % kInFlight];
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) {
            ptx::fma_in_order(flight.products[i / 4 % kTokenGroups][i % 2], flight.block_sums[i], sums[i]);
        }
    }
};

}  // namespace fp8gemm
