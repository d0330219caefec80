// The producer: one thread that keeps the operand ring full.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fp8gemm/scheduler/persistent.cuh"
#include "fp8gemm/trace/tracer.cuh"

namespace fp8gemm {

/// Loads every K block of every tile of this CTA.
///
/// CTAs of a cluster row need the same rows of A, those of a cluster column the same rows of B. Each loads its share of
/// the common tile and multicasts it, so the L2 is read once for all of them. A stage is therefore empty only when the
/// consumers of all CTAs that this one writes to have said so.
template <class Config>
class OperandLoader : Tracer<Config, Track::kLoad> {
    using Shape = TileShape<Config>;
    using Stages = OperandStages<Config>;
    using Ring = BarrierRing<Config::kStages>;

    static constexpr uint32_t kShareOfA = Shape::kBlockM / Config::kClusterN;
    static constexpr uint32_t kShareOfB = Shape::kBlockN / Config::kClusterM;
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
    FP8GEMM_DEVICE OperandLoader(const Params& params, Stages& stages, Ring& ring, uint32_t rank)
        : map_a_(params.a_map),
          map_b_(params.b_map),
          map_scales_a_(params.scales_a_map),
          map_scales_b_(params.scales_b_map),
          stages_(stages),
          ring_(ring),
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
            for (uint32_t k_block = 0; k_block < Shape::kNumKBlocks; ++k_block) {
                load(tile, k_block, state);
                state.advance();
            }
        }
    }

private:
    FP8GEMM_DEVICE void load(TileCoordinate tile, uint32_t k_block, typename Ring::State state) {
        const uint32_t stage = state.stage;
        uint64_t* full = &ring_.full[stage];
        const uint32_t k = k_block * Shape::kBlockK;
        const uint32_t row_a = tile.m * Shape::kBlockM;
        const uint32_t row_b = tile.n * Shape::kBlockN;

        this->mark(Activity::kWaitEmpty, k_block);
        ring_.wait_empty(state);
        this->mark(Activity::kLoad, k_block);
        ptx::mbarrier_arrive_expect_tx(full, Stages::kBytes);
        ptx::tma_load_2d(stages_.scales.a[stage], map_scales_a_, full, row_a, k_block);
        if constexpr (Config::kScaling == Scaling::kRow) {
            ptx::tma_load_2d(stages_.scales.b[stage], map_scales_b_, full, row_b, k_block);
        }
        load_share<Config::kClusterN, kShareOfA>(stages_.a[stage], map_a_, full, k, row_a, rank_n_);
        load_share<Config::kClusterM, kShareOfB>(stages_.b[stage], map_b_, full, k, row_b, rank_m_);
    }

    /// Loads share `rank` of an operand tile that `kSharers` CTAs have in common.
    template <uint32_t kSharers, uint32_t kShareRows>
    FP8GEMM_DEVICE void load_share(uint8_t* tile, const TensorMap& map, uint64_t* full, uint32_t k, uint32_t row,
                                   uint32_t rank) {
        if constexpr (kSharers == 1) {
            ptx::tma_load_2d(tile, map, full, k, row);
        } else {
            // With a cluster of two there is one operand in common, and both CTAs take part.
            static_assert(kSharers == Shape::kClusterSize, "multicast goes to the whole cluster");
            const uint32_t first = rank * kShareRows;
            ptx::tma_load_2d_multicast(tile + first * Shape::kBlockK, map, full, k, row + first, kAllOfCluster);
        }
    }
};

}  // namespace fp8gemm
