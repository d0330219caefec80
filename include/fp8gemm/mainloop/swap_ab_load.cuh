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
#include "fp8gemm/scheduler/tile_order.cuh"

namespace fp8gemm {

template <class Config>
class SwapAbLoader {
    using Shape = SwapAbShape<Config>;
    using Stages = SwapAbStages<Config>;
    static constexpr bool kHoldsAll = Shape::kSteps <= Config::kStages;
    static constexpr uint32_t kAhead = kHoldsAll ? Shape::kSteps : Config::kStages;

    SwapAbCopies<Config> copies_;
    Stages& stages_;
    uint32_t first_token_;
    uint32_t first_row_;
    uint32_t first_k_block_;
    bool weights_first_;

public:
    template <class Params>
    FP8GEMM_DEVICE SwapAbLoader(const Params& params, Stages& stages, SplitTile split)
        : copies_(params, stages),
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
        typename Stages::Ring::State state{0, 0};
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
        copies_.load_tokens(first_token_, first_k_block_ + step * Shape::kBlocksPerStage, stage);
    }

    FP8GEMM_DEVICE void load_weights(uint32_t step, uint32_t stage) {
        copies_.load_weights(first_row_, first_k_block_ + step * Shape::kBlocksPerStage, stage);
    }
};

}  // namespace fp8gemm
