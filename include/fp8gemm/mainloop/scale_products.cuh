// The products of scales that promotion multiplies block sums by, for all of a CTA's K at once.
//
// The tile's weight rows lie in one 128-row block, so a K block has one weight scale, and one product for each token.
// The consumers compute them before the first operands arrive, each thread a few.
// NOTE: By ordinary loads. By TMA, a box for each stage, every CTA asks for pieces of the same few cache lines again and
// again, which took 0.6 us of 5.1 (8x2112x7168, H200, 2026-11-22).
#pragma once

#include "fp8gemm/common/swap_ab_shape.cuh"
#include "fp8gemm/scheduler/split.cuh"

namespace fp8gemm {

template <class Config>
class ScaleProducts {
    using Shape = SwapAbShape<Config>;
    static constexpr uint32_t kProducts = Shape::kBlocksOfCta * Shape::kTokens;
    /// Loads of a thread that are on their way together.
    static constexpr uint32_t kBatch = minimum(8u, ceil_div(kProducts, Shape::kConsumers));

    const float* scales_a_;
    int64_t stride_m_;
    int64_t stride_k_;
    const float* scales_b_;
    uint32_t tokens_;
    uint32_t first_k_block_;
    float first_scales_b_[kBatch];

public:
    using OfBlock = float[Shape::kTokens];

    /// `tokens` is how many of the tile exist.
    template <class Params>
    FP8GEMM_DEVICE ScaleProducts(const Params& params, SplitTile split, uint32_t tokens)
        : scales_a_(params.scales_a + split.tile.m * Shape::kTokens * params.scales_a_stride_m),
          stride_m_(params.scales_a_stride_m),
          stride_k_(params.scales_a_stride_k),
          scales_b_(params.scales_b + split.tile.n * Shape::kRows / kScaleBlock * Shape::kNumKBlocks),
          tokens_(tokens),
          first_k_block_(split.rank * Shape::kBlocksOfCta) {}

    /// Asks for the weight scales of this thread's first products.
    FP8GEMM_DEVICE void begin() { load_scales_b(0, first_scales_b_); }

    /// Writes this thread's products; those of tokens or K blocks that do not exist are zero.
    FP8GEMM_DEVICE void write(OfBlock (&products)[Shape::kBlocksOfCta]) const {
        write_batch(0, first_scales_b_, products);
#pragma unroll 1
        for (uint32_t first = kBatch * Shape::kConsumers; first < kProducts; first += kBatch * Shape::kConsumers) {
            float scales_b[kBatch];
            load_scales_b(first, scales_b);
            write_batch(first, scales_b, products);
        }
    }

private:
    /// A thread's i-th product of a batch is that of token `index % kTokens` in K block `index / kTokens`.
    static FP8GEMM_DEVICE uint32_t index_of(uint32_t first, uint32_t i) {
        return first + i * Shape::kConsumers + threadIdx.x;
    }

    FP8GEMM_DEVICE bool exists(uint32_t index) const {
        return index < kProducts && first_k_block_ + index / Shape::kTokens < Shape::kNumKBlocks &&
               index % Shape::kTokens < tokens_;
    }

    FP8GEMM_DEVICE void load_scales_b(uint32_t first, float (&scales_b)[kBatch]) const {
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t index = index_of(first, i);
            scales_b[i] = exists(index) ? scales_b_[first_k_block_ + index / Shape::kTokens] : 0.0f;
        }
    }

    FP8GEMM_DEVICE void write_batch(uint32_t first, const float (&scales_b)[kBatch],
                                    OfBlock (&products)[Shape::kBlocksOfCta]) const {
        float scales_a[kBatch];
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t index = index_of(first, i);
            const uint32_t k_block = first_k_block_ + index / Shape::kTokens;
            // NOTE: Past the L1 cache, which does not know that another kernel may have written them since this one began.
            scales_a[i] =
                exists(index) ? __ldcg(scales_a_ + index % Shape::kTokens * stride_m_ + k_block * stride_k_) : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t index = index_of(first, i);
            if (index < kProducts) {
                products[index / Shape::kTokens][index % Shape::kTokens] = scales_a[i] * scales_b[i];
            }
        }
    }
};

}  // namespace fp8gemm
