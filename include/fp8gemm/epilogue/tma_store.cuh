// Epilogue: registers -> shared memory -> global memory (TMA), the last step by a warp of its own.
//
// NOTE: Rows are written in pieces of 16 bytes. Of a row that ends inside one, TMA writes the whole piece, so the host
// chooses this store only for rows of whole pieces (seen on an H200: three floats past the end of each row of 577).
//
// A consumer warpgroup converts its accumulators into a staging slot and goes on at once; the store warp that serves it
// waits for the slot, issues the copies and hands the slot back when they have read it. The two talk through a ring: the
// consumers are its writers, the store warp its reader.
#pragma once

#include "fp8gemm/epilogue/addend_prefetch.cuh"
#include "fp8gemm/epilogue/addends.cuh"
#include "fp8gemm/epilogue/element.cuh"
#include "fp8gemm/epilogue/staged_parts.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/memory.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fp8gemm/scheduler/tile.cuh"
#include "fp8gemm/trace/tracer.cuh"

namespace fp8gemm {

template <class Config>
class TmaStore {
protected:
    using Shape = TileShape<Config>;
    using Element = OutputElement<Config::kOutput>;
    static constexpr uint32_t kElementBytes = sizeof(typename Element::Storage);

    using Parts = StagedParts<Config>;
    static constexpr uint32_t kPartRows = Parts::kRows, kPartCols = Parts::kCols;
    static constexpr uint32_t kPartsM = Parts::kDown, kPartsN = Parts::kAcross, kParts = Parts::kCount;
    static constexpr uint32_t kSlots = Config::kStagingSlots;
    static constexpr uint32_t kPartsAddedAtOnce = Addends<Config>::kCols / kPartCols;
    /// Parts that share a fence, which costs about as much as the staging of a part.
    static constexpr uint32_t kBatch = minimum(kSlots, ceil_div(kParts, 2u));
    /// Stores that may still be reading their slots when the next part is waited for: those of the slots that a batch, which
    /// is handed over when the last of its own is filled, does not need.
    static constexpr uint32_t kReading = minimum(kSlots - kBatch, kParts - 1);
    static_assert(!Config::kHalfColumns || (Shape::kWavesM == 1 && kParts % 2 == 0 && kReading <= kParts / 2),
                  "half of a tile's columns are the first half of each warpgroup's parts");
    using Ring = BarrierRing<kSlots>;
    using Prefetch = AddendPrefetch<Config>;

    /// Whether what is stored is added to what is there, as each element is by one tile, and once.
    static constexpr bool kAdds = Config::kC == Addend::kInPlace;
    static_assert(!kAdds || (Config::kOutput == OutputType::kFloat32 && Config::kBias == Addend::kNone),
                  "L2 adds FP32, and what is there would come behind the bias");

    static constexpr uint32_t kRowBytes = kPartCols * kElementBytes;
    static constexpr uint32_t kPartBytes = kPartRows * kRowBytes;

    /// Where an element of a part lies in its slot. TMA's swizzle: the 16-byte chunk of a row is exchanged by the number of
    /// the 128-byte line it lies in.
    static FP8GEMM_DEVICE uint32_t swizzled(uint32_t row, uint32_t col) {
        constexpr uint32_t kChunkMask = kRowBytes / 16 - 1;
        const uint32_t offset = row * kRowBytes + col * kElementBytes;
        return offset ^ ((offset / 128 & kChunkMask) * 16);
    }

    /// Parts of a tile that a warpgroup stages: of half of its columns (scheduler/last_round.cuh) the first.
    template <class Tile>
    static FP8GEMM_DEVICE uint32_t parts_of(const Tile& tile) {
        return tile.is_half_wide ? kParts / 2 : kParts;
    }

    static_assert(Config::kN * kElementBytes % 16 == 0,
                  "TMA writes the last 16 bytes of a row whole, even past its end");
    static_assert(kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128, "a row of a part is one swizzle span");

    using Slots = uint8_t[kSlots][kPartBytes];

public:
    static constexpr uint32_t kStoreWarps = Shape::kWarpgroups;

    struct SharedStorage {
        alignas(1024) Slots slots[Shape::kWarpgroups];
        Ring rings[Shape::kWarpgroups];

        FP8GEMM_DEVICE void initialize() {
            for (uint32_t warpgroup = 0; warpgroup < Shape::kWarpgroups; ++warpgroup) {
                rings[warpgroup].initialize(kWarpsPerWarpgroup, 1);
            }
        }
    };

    /// The consumers' side.
    class Writer : Tracer<Config, Track::kEpilogue> {
        Slots& slots_;
        Ring& ring_;
        uint32_t warp_row_;
        typename Ring::State state_ = Ring::State::for_writer();

    public:
        template <class Params>
        FP8GEMM_DEVICE Writer(const Params&, SharedStorage& shared, uint32_t warpgroup, uint32_t warp)
            : slots_(shared.slots[warpgroup]), ring_(shared.rings[warpgroup]), warp_row_(first_row_of_warp(warp)) {}

        template <class Tile>
        FP8GEMM_DEVICE void write(const Tile& tile, const Addends<Config>& addends,
                                  typename Shape::Accumulators& accumulators) {
            this->mark_tile(tile);
            if (tile.is_half_wide) {
                // There is no tile behind it. So the slots can stay constants of the kernel: those of whole tiles.
                const typename Ring::State before = state_;
                write_parts<kParts / 2>(tile, addends, accumulators);
                state_ = before;
            } else {
                write_parts<kParts>(tile, addends, accumulators);
            }
        }

    private:
        template <uint32_t kFirst, class Tile>
        FP8GEMM_DEVICE void write_parts(const Tile& tile, const Addends<Config>& addends,
                                        typename Shape::Accumulators& accumulators) {
#pragma unroll
            for (uint32_t first = 0; first < kFirst; first += kBatch) {
                auto filled = state_;
#pragma unroll
                for (uint32_t i = first; i < minimum(first + kBatch, kFirst); ++i) {
                    const Part<kPartCols> part{i / kPartsN * kPartRows, i % kPartsN * kPartCols};
                    this->mark(Activity::kWaitSlot, i);
                    ring_.wait_empty(state_);
                    this->mark(Activity::kStage, i);
                    if (i % kPartsAddedAtOnce == 0) {
                        addends.add(tile, {part.row, part.col}, accumulators);
                    }
                    stage(part, accumulators);
                    state_.advance();
                }
                ptx::fence_proxy_async();
                __syncwarp();
#pragma unroll
                for (uint32_t i = first; i < minimum(first + kBatch, kFirst); ++i) {
                    if (ptx::lane_index() == 0) {
                        ptx::mbarrier_arrive(&ring_.full[filled.stage]);
                    }
                    filled.advance();
                }
            }
        }

        /// Stages a part, 16 columns at a time.
        FP8GEMM_DEVICE void stage(Part<kPartCols> part, const typename Shape::Accumulators& accumulators) {
#pragma unroll
            for (uint32_t col = 0; col < kPartCols; col += 16) {
                const float* sums = Fragment<Config>::values(accumulators, part, col / 8);
                if constexpr (kElementBytes == 2) {
                    stage_16_bit(col, sums);
                } else {
                    stage_32_bit(col, sums);
                }
            }
        }

        FP8GEMM_DEVICE void stage_16_bit(uint32_t col, const float* s) {
            // Lane l addresses row l % 16 of the left (l < 16) or right half of the 16 columns.
            const uint32_t lane = ptx::lane_index();
            ptx::store_matrix_x4(address(warp_row_ + lane % 16, col + lane / 16 * 8), Element::pack(s[0], s[1]),
                                 Element::pack(s[2], s[3]), Element::pack(s[4], s[5]), Element::pack(s[6], s[7]));
        }

        FP8GEMM_DEVICE void stage_32_bit(uint32_t col, const float* s) {
            const uint32_t lane = ptx::lane_index();
            const uint32_t lane_row = warp_row_ + lane / 4;
            const uint32_t lane_col = col + lane % 4 * 2;
            ptx::store_shared_pair(address(lane_row, lane_col), s[0], s[1]);
            ptx::store_shared_pair(address(lane_row + 8, lane_col), s[2], s[3]);
            ptx::store_shared_pair(address(lane_row, lane_col + 8), s[4], s[5]);
            ptx::store_shared_pair(address(lane_row + 8, lane_col + 8), s[6], s[7]);
        }

        FP8GEMM_DEVICE uint32_t address(uint32_t row, uint32_t col) const {
            return ptx::shared_address(slots_[state_.stage]) + swizzled(row, col);
        }
    };

    /// By one thread.
    template <class Params>
    static FP8GEMM_DEVICE void prefetch_maps(const Params& params) {
        ptx::prefetch_tensor_map(params.d_map);
    }

    /// The store warp's side: every tile of this CTA, for one warpgroup. By the whole warp.
    template <class Params, class Schedule>
    static FP8GEMM_DEVICE void drain(const Params& params, SharedStorage& shared, Schedule schedule,
                                     uint32_t warpgroup) {
        const bool leads = ptx::elect_one();
        if (!Prefetch::kThere && !leads) {
            return;
        }
        const WarpgroupOrigin<Shape, Config> origin(warpgroup);
        Ring& ring = shared.rings[warpgroup];
        auto state = Ring::State::for_reader();
        // Who reads so large an output next will not find it in L2 anyway. So it leaves first, and operands stay:
        // 4651x13056x384 in 52.6 us, not 56.6 (bursts, H100, 2026-11-25).
        const bool passes_through = is_larger_than_l2(params.m, Config::kN, kElementBytes);
        typename Schedule::Tile tile;
        Tracer<Config, Track::kStore> trace;
        while (schedule.next(tile)) {
            Prefetch::run(params, tile, origin);
            if (leads) {
                trace.mark_tile(tile);
                const uint32_t first_row = tile.row_of_d() + origin.row;
                const uint32_t first_col = tile.col_of_d() + origin.col;
                auto oldest = state;
#pragma unroll 1
                for (uint32_t part = 0; part < parts_of(tile); ++part) {
                    trace.mark(Activity::kWaitStaged, part);
                    ring.wait_full(state);
                    trace.mark(Activity::kStore, part);
                    const uint8_t* slot = shared.slots[warpgroup][state.stage];
                    const uint32_t col = first_col + part % kPartsN * kPartCols;
                    const uint32_t row = first_row + part / kPartsN * kPartRows;
                    if (passes_through) {
                        ptx::tma_store_2d<kAdds>(params.d_map, slot, col, row, ptx::evict_first_policy());
                    } else {
                        ptx::tma_store_2d<kAdds>(params.d_map, slot, col, row);
                    }
                    ptx::tma_store_commit();
                    if (part + 1 > kReading) {  // of part >= 0 the compiler warns
                        hand_back<kReading>(ring, oldest);
                    }
                    state.advance();
                }
#pragma unroll 1
                for (uint32_t left = kReading; left > 0; --left) {
                    hand_back<0>(ring, oldest);
                }
            }
            if constexpr (Prefetch::kThere) {
                __syncwarp();
            }
        }
    }

private:
    /// Hands the oldest slot back when all but the last `kLeft` stores have read theirs.
    template <uint32_t kLeft>
    static FP8GEMM_DEVICE void hand_back(Ring& ring, typename Ring::State& oldest) {
        ptx::tma_store_wait_read<kLeft>();
        ptx::mbarrier_arrive(&ring.empty[oldest.stage]);
        oldest.advance();
    }
};

}  // namespace fp8gemm
