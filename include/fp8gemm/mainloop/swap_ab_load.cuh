// The producer of the swapped orientation: one thread that fills the operand ring.
//
// The weight does not depend on the kernel before this one, if the host says so: then as many stages of it as there are
// are asked for before that kernel has ended, and only the tokens wait for it.
//
// The kernel behind this one may start, and ask for its own weight, when all of this one's loads are on their way if the
// ring holds them all; and else when the tokens of the first stages are, which what it asks for would hold up.
#pragma once

#include "fp8gemm/mainloop/swap_ab_stage.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fp8gemm/scheduler/split.cuh"

namespace fp8gemm {

template <class Config>
class SwapAbLoader {
    using Shape = SwapAbShape<Config>;
    using Stages = SwapAbStages<Config>;
    using Ring = BarrierRing<Config::kStages>;
    static constexpr bool kHoldsAll = Shape::kSteps <= Config::kStages;
    static constexpr uint32_t kAhead = kHoldsAll ? Shape::kSteps : Config::kStages;

    const TensorMap& map_a_;
    const TensorMap& map_b_;
    Stages& stages_;
    uint32_t first_token_;
    uint32_t first_row_;
    uint32_t first_k_block_;
    bool weights_first_;

public:
    template <class Params>
    FP8GEMM_DEVICE SwapAbLoader(const Params& params, Stages& stages, SplitTile split)
        : map_a_(params.a_map),
          map_b_(params.b_map),
          stages_(stages),
          first_token_(split.tile.m * Shape::kTokens),
          first_row_(split.tile.n * Shape::kRows),
          first_k_block_(split.rank * Shape::kBlocksOfCta),
          weights_first_(params.static_weights != 0) {}

    /// By one thread.
    FP8GEMM_DEVICE void run() {
        if constexpr (kHoldsAll) {
            ptx::launch_dependents();
        }
#pragma unroll 1
        for (uint32_t step = 0; step < kAhead; ++step) {
            ptx::mbarrier_arrive_expect_tx(&stages_.ring.full[step], Stages::kBytes);
            if (weights_first_) {
                load_weights(step, step);
            }
        }
        ptx::wait_for_previous_grids();
#pragma unroll 1
        for (uint32_t step = 0; step < kAhead; ++step) {
            load_tokens(step, step);
            if (!weights_first_) {
                load_weights(step, step);
            }
        }
        if constexpr (!kHoldsAll) {
            ptx::launch_dependents();
        }
        // What was filled above counts as the first pass over the ring.
        typename Ring::State state{0, 0};
#pragma unroll 1
        for (uint32_t step = kAhead; step < Shape::kSteps; ++step) {
            stages_.ring.wait_empty(state);
            ptx::mbarrier_arrive_expect_tx(&stages_.ring.full[state.stage], Stages::kBytes);
            load_tokens(step, state.stage);
            load_weights(step, state.stage);
            state.advance();
        }
    }

private:
    FP8GEMM_DEVICE void load_tokens(uint32_t step, uint32_t stage) {
        const uint32_t k_block = first_k_block_ + step * Shape::kBlocksPerStage;
        load_blocks<Stages::kTokenBlockBytes>(stages_.tokens[stage], map_a_, &stages_.ring.full[stage], first_token_,
                                              k_block);
    }

    FP8GEMM_DEVICE void load_weights(uint32_t step, uint32_t stage) {
        const uint32_t k_block = first_k_block_ + step * Shape::kBlocksPerStage;
        load_blocks<Stages::kWeightBlockBytes>(stages_.weights[stage], map_b_, &stages_.ring.full[stage], first_row_,
                                               k_block, ptx::evict_first_policy());
    }

    /// Loads the K blocks of a stage: at once, if K is whole blocks and the map therefore has a dimension of them.
    /// `policy` is none or that of the L2 cache.
    template <uint32_t kBlockBytes, class... Policy>
    FP8GEMM_DEVICE void load_blocks(uint8_t* destination, const TensorMap& map, uint64_t* full, uint32_t row,
                                    uint32_t k_block, Policy... policy) {
        if constexpr (Config::kK % Config::kBlockK == 0) {
            ptx::tma_load_3d(destination, map, full, 0, row, k_block, policy...);
        } else {
#pragma unroll
            for (uint32_t block = 0; block < Shape::kBlocksPerStage; ++block) {
                ptx::tma_load_2d(destination + block * kBlockBytes, map, full, (k_block + block) * Config::kBlockK, row,
                                 policy...);
            }
        }
    }
};

}  // namespace fp8gemm
