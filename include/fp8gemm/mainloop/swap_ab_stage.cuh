// The operand ring of the swapped orientation: K blocks of weights and of tokens.
#pragma once

#include "fp8gemm/common/swap_ab_shape.cuh"
#include "fp8gemm/mainloop/descriptor.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"

namespace fp8gemm {

/// Operand ring of a CTA. Each K block starts on a 1024-byte boundary, where the pattern of the 128-byte swizzle begins.
template <class Config>
struct SwapAbStages {
    using Shape = SwapAbShape<Config>;
    using Ring = BarrierRing<Config::kStages>;
    static constexpr uint32_t kWeightBlockBytes = Shape::kRows * Config::kBlockK;
    static constexpr uint32_t kTokenBlockBytes = Shape::kTokens * Config::kBlockK;
    static constexpr uint32_t kWeightBytes = Shape::kBlocksPerStage * kWeightBlockBytes;
    static constexpr uint32_t kTokenBytes = Shape::kBlocksPerStage * kTokenBlockBytes;
    /// What arrives per stage. Boxes count whole, tails included.
    static constexpr uint32_t kBytes = kWeightBytes + kTokenBytes;

    alignas(1024) uint8_t weights[Config::kStages][kWeightBytes];
    alignas(1024) uint8_t tokens[Config::kStages][kTokenBytes];
    Ring ring;
};

}  // namespace fp8gemm
