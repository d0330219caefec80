// The operand ring of the swapped orientation, K blocks of weights and of tokens, and the copies that fill it.
#pragma once

#include "fp8gemm/common/swap_ab_shape.cuh"
#include "fp8gemm/mainloop/descriptor.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/tma.cuh"

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

/// The copies that fill a stage. By one thread; the stage must be empty, and expect its bytes.
template <class Config>
class SwapAbCopies {
    using Shape = SwapAbShape<Config>;
    using Stages = SwapAbStages<Config>;

    const TensorMap& map_a_;
    const TensorMap& map_b_;
    Stages& stages_;

public:
    template <class Params>
    FP8GEMM_DEVICE SwapAbCopies(const Params& params, Stages& stages)
        : map_a_(params.a_map), map_b_(params.b_map), stages_(stages) {}

    /// By one thread, ahead of all loads: the first one that uses a map would wait for it.
    template <class Params>
    static FP8GEMM_DEVICE void prefetch_maps(const Params& params) {
        ptx::prefetch_tensor_map(params.b_map);
        ptx::prefetch_tensor_map(params.a_map);
    }

    FP8GEMM_DEVICE void load_tokens(uint32_t first_token, uint32_t k_block, uint32_t stage) {
        load_blocks<Stages::kTokenBlockBytes>(stages_.tokens[stage], map_a_, &stages_.ring.full[stage], first_token,
                                              k_block);
    }

    FP8GEMM_DEVICE void load_weights(uint32_t first_row, uint32_t k_block, uint32_t stage) {
        load_blocks<Stages::kWeightBlockBytes>(stages_.weights[stage], map_b_, &stages_.ring.full[stage], first_row,
                                               k_block, ptx::evict_first_policy());
    }

private:
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
