// The producer: one thread that keeps the operand ring full.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fp8gemm/scheduler/persistent.cuh"
#include "fp8gemm/trace/tracer.cuh"

namespace fp8gemm {

/// Loads every K block of every tile of this CTA.
///
/// CTAs of a cluster row need the same rows of A, those of a cluster column the same rows of B. Each loads its part of
/// the common tile and multicasts it, so the L2 is read once for all of them. A stage is therefore empty only when the
/// consumers of all CTAs that this one writes to have said so.
template <class Config>
class OperandLoader : Tracer<Config, Track::kLoad> {
    using Shape = TileShape<Config>;
    using Stages = OperandStages<Config>;
    using Ring = BarrierRing<Config::kStages>;

    static constexpr uint32_t kPartOfA = Shape::kBlockM / Config::kClusterN;
    static constexpr uint32_t kPartOfB = Shape::kBlockN / Config::kClusterM;
    static constexpr uint16_t kAllOfCluster = (1u << Shape::kClusterSize) - 1;

    const TensorMap& map_a_;
    const TensorMap& map_b_;
    const TensorMap& map_scales_a_;
    const TensorMap& map_scales_b_;
    Stages& stages_;
    Ring& ring_;
    uint32_t rank_m_;
    uint32_t rank_n_;

public:
    template <class Params>
    FP8GEMM_DEVICE OperandLoader(const Params& params, Stages& stages, uint32_t rank)
        : map_a_(params.a_map),
          map_b_(params.b_map),
          map_scales_a_(params.scales_a_map),
          map_scales_b_(params.scales_b_map),
          stages_(stages),
          ring_(stages.ring),
          rank_m_(rank / Config::kClusterN),
          rank_n_(rank % Config::kClusterN) {}

    /// By one thread.
    FP8GEMM_DEVICE void run(PersistentSchedule<Config> schedule) {
        auto state = Ring::State::for_writer();
        TileCoordinate tile;
        while (schedule.next(tile)) {
            this->mark_tile(tile);
            // NOTE: Unrolled by the number of stages, the loop's addresses no longer fit the few registers of this warp.
#pragma unroll 1
            for (uint32_t step = 0; step < Shape::kNumSteps; ++step) {
                load(tile, step, state);
                state.advance();
            }
        }
    }

private:
    FP8GEMM_DEVICE void load(TileCoordinate tile, uint32_t step, typename Ring::State state) {
        uint64_t* full = &ring_.full[state.stage];
        const uint32_t first = step * Stages::kBlocksPerStage;
        this->mark(Activity::kWaitEmpty, first);
        ring_.wait_empty(state);
        this->mark(Activity::kLoad, first);
        ptx::mbarrier_arrive_expect_tx(full, Stages::kBytes);
#pragma unroll
        for (uint32_t share = 0; share < Stages::kBlocksPerStage; ++share) {
            if (share != 0) {
                this->mark(Activity::kLoad, first + share);
            }
            load_block(tile, first + share, state.stage * Stages::kBlocksPerStage + share, full);
        }
    }

    FP8GEMM_DEVICE void load_block(TileCoordinate tile, uint32_t k_block, uint32_t slot, uint64_t* full) {
        const uint32_t k = k_block * Shape::kBlockK;
        const uint32_t row_a = tile.m * Shape::kBlockM;
        const uint32_t row_b = tile.n * Shape::kBlockN;
        ptx::tma_load_2d(stages_.scales.a[slot], map_scales_a_, full, row_a, k_block);
        if constexpr (Config::kScaling == Scaling::kRow) {
            ptx::tma_load_2d(stages_.scales.b[slot], map_scales_b_, full, row_b, k_block);
        }
        load_part<Config::kClusterN, kPartOfA>(stages_.a[slot], map_a_, full, k, row_a, rank_n_);
        load_part<Config::kClusterM, kPartOfB>(stages_.b[slot], map_b_, full, k, row_b, rank_m_);
    }

    /// Loads part `rank` of an operand tile that `kSharers` CTAs have in common.
    template <uint32_t kSharers, uint32_t kPartRows>
    FP8GEMM_DEVICE void load_part(uint8_t* tile, const TensorMap& map, uint64_t* full, uint32_t k, uint32_t row,
                                  uint32_t rank) {
        if constexpr (kSharers == 1) {
            ptx::tma_load_2d(tile, map, full, k, row);
        } else {
            // With a cluster of two there is one operand in common, and both CTAs take part.
            static_assert(kSharers == Shape::kClusterSize, "multicast goes to the whole cluster");
            const uint32_t first = rank * kPartRows;
            ptx::tma_load_2d_multicast(tile + first * Shape::kBlockK, map, full, k, row + first, kAllOfCluster);
        }
    }
};

}  // namespace fp8gemm
