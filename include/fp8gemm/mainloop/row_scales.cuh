// Promotion with one scale per row of B and 128 columns of K: every column of the output has its own. They are read where
// a wave is promoted, so that no thread keeps as many registers of them as half its block sums, for each wave in flight.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/wgmma.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

/// One thread's reader of the row scales, which arrive with the operands.
template <class Config>
class RowScales {
    using Shape = TileShape<Config>;

    const OperandStages<Config>& stages_;
    uint32_t first_col_;  ///< of this thread in the CTA tile

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

    /// Nothing to do ahead of a stage: its scales come with it, more than there are registers for ahead of it.
    static constexpr bool kAhead = false;
    /// Promotion reads the stage, which is handed back behind it.
    static constexpr bool kReadsStage = true;
    template <class Tile>
    FP8GEMM_DEVICE void begin(const Tile&) {}
    FP8GEMM_DEVICE void advance(uint32_t) {}

    /// `scales_a` are those of this thread's upper and lower row of the wave.
    FP8GEMM_DEVICE static Products products(uint32_t slot, uint32_t, uint32_t, const float (&scales_a)[2]) {
        return {scales_a[0], scales_a[1], slot};
    }

    /// Adds a wave's block sums, times the products, to its accumulators. Joins a part of each load to `loaded`.
    FP8GEMM_DEVICE void promote(Borders, uint32_t wave, const Products& factors,
                                const float (&block_sums)[Shape::kWaveRegisters],
                                float (&accumulators)[Shape::kWaveRegisters], uint32_t& loaded) const {
        const float* source = &stages_.scales.b[factors.slot][first_col_ + wave * Shape::kWaveN];
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters; i += 4) {
            const float2 pair = *reinterpret_cast<const float2*>(source + i * 2);
            ptx::fma_in_order(factors.upper * pair.x, block_sums[i + 0], accumulators[i + 0]);
            ptx::fma_in_order(factors.upper * pair.y, block_sums[i + 1], accumulators[i + 1]);
            ptx::fma_in_order(factors.lower * pair.x, block_sums[i + 2], accumulators[i + 2]);
            ptx::fma_in_order(factors.lower * pair.y, block_sums[i + 3], accumulators[i + 3]);
            loaded |= __float_as_uint(pair.x);
        }
    }
};

}  // namespace fp8gemm
