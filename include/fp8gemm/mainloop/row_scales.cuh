// Promotion with one scale per row of B and 128 columns of K: every column of the output has its own.
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

    /// The factors of s: this thread's upper and lower row, and its pairs of columns, which are 8 apart. Their products
    /// would be as many as the elements.
    struct Products {
        float upper;
        float lower;
        float first[Shape::kWaveRegisters / 4];
        float second[Shape::kWaveRegisters / 4];
    };

    /// `first_col` is the warpgroup's in the CTA tile.
    FP8GEMM_DEVICE RowScales(const float*, const OperandStages<Config>& stages, uint32_t first_col, uint32_t)
        : stages_(stages), first_col_(first_col + ptx::lane_index() % 4 * 2) {}

    /// Nothing to do ahead of a stage: its scales come with it, more than there are registers for ahead of it.
    static constexpr bool kAhead = false;
    template <class Tile>
    FP8GEMM_DEVICE void begin(const Tile&) {}
    FP8GEMM_DEVICE void advance(uint32_t) {}

    /// `scales_a` are those of this thread's upper and lower row of the wave. Joins a part of each load
    /// to `loaded`.
    FP8GEMM_DEVICE Products products(uint32_t slot, uint32_t, uint32_t wave, const float (&scales_a)[2],
                                     uint32_t& loaded) const {
        Products factors;
        factors.upper = scales_a[0];
        factors.lower = scales_a[1];
        const float* source = &stages_.scales.b[slot][first_col_ + wave * Shape::kWaveN];
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters / 4; ++i) {
            const float2 pair = *reinterpret_cast<const float2*>(source + i * 8);
            factors.first[i] = pair.x;
            factors.second[i] = pair.y;
            loaded |= __float_as_uint(pair.x);
        }
        return factors;
    }

    /// The same for a wave of other rows, given those of one of the same columns and K block.
    FP8GEMM_DEVICE static Products products_below(const Products& above, uint32_t, uint32_t, uint32_t,
                                                  const float (&scales_a)[2], uint32_t&) {
        Products factors = above;
        factors.upper = scales_a[0];
        factors.lower = scales_a[1];
        return factors;
    }

    FP8GEMM_DEVICE static void promote(Borders, uint32_t, const Products& factors,
                                       const float (&block_sums)[Shape::kWaveRegisters],
                                       float (&accumulators)[Shape::kWaveRegisters]) {
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters; i += 4) {
            const float first = factors.first[i / 4];
            const float second = factors.second[i / 4];
            ptx::fma_in_order(factors.upper * first, block_sums[i + 0], accumulators[i + 0]);
            ptx::fma_in_order(factors.upper * second, block_sums[i + 1], accumulators[i + 1]);
            ptx::fma_in_order(factors.lower * first, block_sums[i + 2], accumulators[i + 2]);
            ptx::fma_in_order(factors.lower * second, block_sums[i + 3], accumulators[i + 3]);
        }
    }
};

}  // namespace fp8gemm
