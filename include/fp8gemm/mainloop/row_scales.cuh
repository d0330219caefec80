// Promotion with one scale per row of B and 128 columns of K: every column of the output has its own. A thread needs half as
// many as a wave has block sums, more than there are registers for beside two wide waves in flight; and loads from shared
// memory, of which WGMMAs read all the time, take as long as 20 promotions.
//
// So the scales of the first columns are kept in registers, from one wave ahead: they are loaded beside the promotion of the
// wave before, whose own are used up. Those of the others are read where they are used, behind the first ones' promotion.
// All are kept of waves above one another, which have the same columns: they are loaded once for all of these waves; and if
// there is room beside one wave in flight, beside which they are loaded.
#pragma once

#include "fp8gemm/mainloop/chunk_plan.cuh"
#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/wgmma.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

/// One thread's reader of the row scales, which arrive with the operands.
template <class Config>
class RowScales {
    using Shape = TileShape<Config>;
    static constexpr uint32_t kPairs = Shape::kWaveRegisters / 4;  ///< of columns, of a thread
    static constexpr bool kKeepsAll =
        Shape::kWavesM > 1 || (WavesInFlight<Config>::kWaves == 1 && 2 * Shape::kWaveRegisters + 2 * kPairs <= 200);
    static constexpr uint32_t kKept = kKeepsAll ? kPairs : minimum(kPairs, 4u);
    static_assert(Shape::kWavesN == 1, "what is kept is of one wave's columns");

    const OperandStages<Config>& stages_;
    uint32_t first_col_;  ///< of this thread in the CTA tile
    float2 kept_[kKept];

public:
    static constexpr uint32_t kBorderStep = kScaleBlock;  ///< one kind of scale for all columns: no border

    /// The factors of s: those of this thread's upper and lower row, and which K block of the ring has those of its pairs of
    /// columns, which are 8 apart.
    struct Products {
        float upper;
        float lower;
        uint32_t slot;
    };

    /// `first_col` is the warpgroup's in the CTA tile.
    FP8GEMM_DEVICE RowScales(const float*, const OperandStages<Config>& stages, uint32_t first_col, uint32_t)
        : stages_(stages), first_col_(first_col + ptx::lane_index() % 4 * 2) {}

    /// Nothing to do ahead of a stage: its scales come with it.
    static constexpr bool kFetches = false;
    static constexpr bool kAhead = false;
    static constexpr bool kKeeps = true;
    /// Promotion reads the stage, which is handed back behind it.
    static constexpr bool kReadsStage = kKept < kPairs;
    template <class Tile>
    FP8GEMM_DEVICE void begin(const Tile&) {}
    FP8GEMM_DEVICE void advance(uint32_t) {}

    /// `scales_a` are those of this thread's upper and lower row of the wave.
    FP8GEMM_DEVICE static Products products(uint32_t slot, uint32_t, uint32_t, const float (&scales_a)[2]) {
        return {scales_a[0], scales_a[1], slot};
    }

    /// Loads what is kept of a K block, whose stage is full, when the one before has been promoted.
    FP8GEMM_DEVICE void keep(uint32_t slot) {
#pragma unroll
        for (uint32_t pair = 0; pair < kKept; ++pair) {
            kept_[pair] = read(slot, pair);
        }
    }

    /// Made of a part of each load of `keep`.
    FP8GEMM_DEVICE uint32_t kept() const {
        uint32_t loaded = 0;
#pragma unroll
        for (uint32_t pair = 0; pair < kKept; ++pair) {
            loaded |= __float_as_uint(kept_[pair].x);
        }
        return loaded;
    }

    /// Adds a wave's block sums, times the products, to its accumulators. Where it reads the stage it joins a part of each
    /// load of the K block to `loaded`.
    FP8GEMM_DEVICE void promote(Borders, uint32_t, const Products& factors,
                                const float (&block_sums)[Shape::kWaveRegisters],
                                float (&accumulators)[Shape::kWaveRegisters], uint32_t& loaded) const {
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters; i += 4) {
            const float2 pair = i / 4 < kKept ? kept_[i / 4] : read(factors.slot, i / 4);
            ptx::fma_in_order(factors.upper * pair.x, block_sums[i + 0], accumulators[i + 0]);
            ptx::fma_in_order(factors.upper * pair.y, block_sums[i + 1], accumulators[i + 1]);
            ptx::fma_in_order(factors.lower * pair.x, block_sums[i + 2], accumulators[i + 2]);
            ptx::fma_in_order(factors.lower * pair.y, block_sums[i + 3], accumulators[i + 3]);
            if constexpr (kReadsStage) {
                loaded |= __float_as_uint(pair.x);
            }
        }
    }

private:
    FP8GEMM_DEVICE float2 read(uint32_t slot, uint32_t pair) const {
        return *reinterpret_cast<const float2*>(&stages_.scales.b[slot][first_col_ + pair * 8]);
    }
};

}  // namespace fp8gemm
