// The producer: one thread that keeps the operand ring full.
#pragma once

#include "fp8gemm/mainloop/operand_copies.cuh"
#include "fp8gemm/scheduler/walk.cuh"
#include "fp8gemm/trace/tracer.cuh"

namespace fp8gemm {

/// Loads every K block of every tile of this CTA.
///
/// What it asks for may be written to the other CTA of a cluster too. A stage is therefore empty only when the consumers of
/// all CTAs that this one writes to have said so; of half a tile (scheduler/grouped.cuh), the first warpgroup's and the
/// producer itself, which speaks for the second. No CTA begins with one.
///
/// The first steps are asked for by `begin`, ahead of the roles: code that a kernel jumps to has to be fetched first, and
/// nothing of the kernel is more urgent than its first operands (5 to 9 % of products of 3 to 5 us, H200, 2026-11-25).
///
/// NOTE: Multiplying what is left in the place of rows that are not asked for costs energy, which zeros do not: where power
/// counts and K is long, the tile's second pass over the ring, for which nobody waits, asks for these rows too, and leaves
/// zeros to the others.
///
/// Up to Config::kStreamedRows rows B leaves L2 first (fp8gemm/tuning/l2.py). Tiles of which B is asked for in another way
/// have loops of their own: a branch inside makes B late (2 % of 256x4096x7168, in turn, H200, 2026-11-27; 1 % of products of
/// 128x256 in bursts, 2026-11-29). Without the hint in the first steps 64 to 128x7168x2048 take
/// 3 to 4 % longer, 64x2112x7168 6, and others up to 4 % less (in turn, one output for all calls, H100, 2026-11-27).
template <class Config>
class OperandLoader : Tracer<Config, Track::kLoad> {
    using Shape = TileShape<Config>;
    using Stages = OperandStages<Config>;
    using Copies = OperandCopies<Config>;
    using Ring = BarrierRing<Config::kStages>;

    using OfB = typename Copies::OfB;
    static constexpr OfB kPieces = OfB::kInPieces;
    template <bool kIsStreamed>
    static constexpr OfB kOther = kIsStreamed ? OfB::kStreamed : OfB::kWhole;

    /// Steps that `begin`, which waits for no stage, asks for if the first tile has as many: two gain less (H200, 2026-11-25).
    static constexpr uint32_t kFirstSteps = minimum(4u, Config::kStages);
    /// Where each place of the ring is filled several times.
    static constexpr bool kZeroesMissingRows = Copies::kCanZero && Shape::kNumSteps >= 4 * Config::kStages;
    /// Rows of a product, or of one of many groups, from which power counts.
    static constexpr uint32_t kManyRows = Config::kGrouping == Grouping::kNone ? 512 : 64;

    const Copies copies_;
    Ring& ring_;
    uint32_t m_;
    typename Ring::State state_ = Ring::State::for_writer();

public:
    /// By one thread before `run`, when barriers are initialised, the kernels ahead have ended, and groups have their table.
    template <class Params, class Schedule>
    static FP8GEMM_DEVICE void begin(const Params& params, Stages& stages, uint32_t rank, const Walk<Schedule>& walk) {
        if (walk.more) {
            const Copies copies(params, stages, rank);
            const auto operands = copies.operands_of(walk.tile);
            if constexpr (Config::kStreamedRows > 0) {
                if (params.m <= Config::kStreamedRows) {
                    begin_as<true>(copies, operands, walk.tile);
                    return;
                }
            }
            begin_as<false>(copies, operands, walk.tile);
        }
    }

    template <class Params>
    FP8GEMM_DEVICE OperandLoader(const Params& params, Stages& stages, uint32_t rank)
        : copies_(params, stages, rank), ring_(stages.ring), m_(params.m) {}

    /// By the same thread; `walk` is at the CTA's first tile, as `begin` had it. `beside` is run behind each step's loads,
    /// and once where `begin` has asked for all steps of the first tile.
    template <class Schedule, class Prefetch>
    FP8GEMM_DEVICE void run(Walk<Schedule> walk, Prefetch beside) {
        if constexpr (Config::kStreamedRows > 0) {
            if (m_ <= Config::kStreamedRows) {
                run_as<true>(walk, beside);
                return;
            }
        }
        run_as<false>(walk, beside);
    }

    /// By the same thread, after `run`: a CTA may not exit while others of its cluster can still write to its shared memory
    /// or arrive at its barriers. Its own consumers wait for all that is ever written; once every stage has been handed
    /// back by those of both CTAs, no arrival is on its way any more.
    FP8GEMM_DEVICE void finish() {
        if constexpr (Shape::kSharers > 1) {
#pragma unroll 1
            for (uint32_t stage = 0; stage < Config::kStages; ++stage) {
                ring_.wait_empty(state_);
                state_.advance();
            }
        }
    }

private:
    template <bool kIsStreamed, class Tile>
    static FP8GEMM_DEVICE void begin_as(const Copies& copies, const typename Copies::Operands& operands,
                                        const Tile& tile) {
        if (operands.has_b_in_pieces()) {
            begin_tile<kPieces>(copies, operands, tile);
        } else {
            begin_tile<kOther<kIsStreamed>>(copies, operands, tile);
        }
    }

    template <OfB kOfB, class Tile>
    static FP8GEMM_DEVICE void begin_tile(const Copies& copies, const typename Copies::Operands& operands,
                                          const Tile& tile) {
#pragma unroll 1
        for (uint32_t step = 0; step < minimum(kFirstSteps, tile.steps()); ++step) {
            copies.template fill<kOfB>(tile, operands, step, step, [](uint32_t) {});
        }
    }

    template <bool kIsStreamed, class Schedule, class Prefetch>
    FP8GEMM_DEVICE void run_as(Walk<Schedule> walk, Prefetch& beside) {
        bool has_begun = true;
        for (; walk.more; walk.advance()) {
            const typename Schedule::Tile& tile = walk.tile;
            this->mark_tile(tile);
            const auto operands = copies_.operands_of(tile);
            uint32_t step = 0;
            if (has_begun) {
                for (; step < minimum(kFirstSteps, tile.steps()); ++step) {
                    pass_begun(step);
                }
                has_begun = false;
            }
            if (operands.has_b_in_pieces()) {
                load_tile<kPieces>(tile, operands, step, beside);
            } else {
                typename Schedule::Tile whole = tile;
                whole.take_all();
                load_tile<kOther<kIsStreamed>>(whole, copies_.with_whole_b(operands), step, beside);
            }
        }
    }

    /// Its steps from `step` on.
    template <OfB kOfB, class Tile, class Prefetch>
    FP8GEMM_DEVICE void load_tile(const Tile& tile, const typename Copies::Operands& operands, uint32_t step,
                                  Prefetch& beside) {
        beside.begin_tile();
        if (step == tile.steps()) {
            beside.run(tile, 0);
        }
        // NOTE: Unrolled by the number of stages, the loop's addresses no longer fit the few registers of this warp.
#pragma unroll 1
        for (; step < tile.steps(); ++step) {
            const bool zeroes = kZeroesMissingRows && !tile.is_half && !tile.is_half_wide &&
                                tile.rows_of_product(m_) >= kManyRows && step / Config::kStages == 1;
            load<kOfB>(tile, zeroes ? copies_.with_zeros(operands) : operands, step);
            beside.run(tile, tile.steps() - 1 - step);
        }
    }

    /// The instrumented build marks here what `begin` asked for: roles make marks.
    FP8GEMM_DEVICE void pass_begun(uint32_t step) {
        for (uint32_t share = 0; share < Stages::kBlocksPerStage; ++share) {
            this->mark(Activity::kLoad, step * Stages::kBlocksPerStage + share);
        }
        state_.advance();
    }

    template <OfB kOfB, class Tile>
    FP8GEMM_DEVICE void load(const Tile& tile, const typename Copies::Operands& operands, uint32_t step) {
        this->mark(Activity::kWaitEmpty, step * Stages::kBlocksPerStage);
        ring_.wait_empty(state_);
        copies_.template fill<kOfB>(tile, operands, step, state_.stage,
                                    [this](uint32_t block) { this->mark(Activity::kLoad, block); });
        if (tile.is_half) {
            release_for_second_warpgroup();
        }
        state_.advance();
    }

    /// Hands a half tile's stage back for the warps that do not read it. They have handed back what was in it before.
    FP8GEMM_DEVICE void release_for_second_warpgroup() {
#pragma unroll
        for (uint32_t warp = 0; warp < kWarpsPerWarpgroup; ++warp) {
            ptx::mbarrier_arrive(&ring_.empty[state_.stage]);
        }
    }
};

}  // namespace fp8gemm
