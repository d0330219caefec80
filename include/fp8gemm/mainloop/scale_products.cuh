// The products of scales that promotion multiplies block sums by, for all of a CTA's K at once.
//
// The tile's weight rows lie in one 128-row block, so a K block has one weight scale, and one product for each token.
// The consumers compute them before the first operands arrive, each thread a few.
// NOTE: By ordinary loads. By TMA, a box for each stage, every CTA asks for pieces of the same few cache lines again and
// again, which took 0.6 us of 5.1 (8x2112x7168, H200, 2026-11-22).
#pragma once

#include "fp8gemm/common/swap_ab_shape.cuh"

namespace fp8gemm {

/// Where the scales of a tile are; strides in elements.
struct TileScales {
    const float* a;  ///< of the tile's first token
    int64_t a_stride_m;
    int64_t a_stride_k;
    const float* b;  ///< of the 128-row block that the tile's weight rows lie in
};

template <class Config>
class ScaleProducts {
    using Shape = SwapAbShape<Config>;
    /// K blocks whose products the threads compute together, each thread those of one token. A few threads may have none.
    static constexpr uint32_t kBlocksOfPass = Shape::kConsumers / Shape::kTokens;
    static constexpr uint32_t kPasses = ceil_div(Shape::kBlocksOfCta, kBlocksOfPass);
    /// Passes whose loads are on their way together: the fewest batches, because each waits for the one before it. They
    /// take the registers that the sums take later.
    static constexpr uint32_t kMostOfBatch = minimum(8 + Shape::kWaveRegisters / 2, 32u);
    static constexpr uint32_t kBatch = ceil_div(kPasses, ceil_div(kPasses, kMostOfBatch));

    const float* scales_a_;  ///< of this thread's token, from its first K block on
    const float* scales_b_;
    int64_t stride_of_pass_;
    uint32_t token_;
    uint32_t block_;   ///< of the CTA, the first of this thread
    uint32_t blocks_;  ///< of the CTA that there are products for: those past the end of K, or of no token, are zero
    float scales_b_of_batch_[kBatch];

public:
    using OfBlock = float[Shape::kTokens];

    /// `first_block` is the CTA's first K block, `tokens` how many of the tile exist.
    FP8GEMM_DEVICE ScaleProducts(const TileScales& scales, uint32_t first_block, uint32_t tokens)
        : stride_of_pass_(scales.a_stride_k * kBlocksOfPass),
          token_(threadIdx.x % Shape::kTokens),
          block_(threadIdx.x / Shape::kTokens) {
        const uint32_t exist = Shape::kNumKBlocks - minimum(first_block, Shape::kNumKBlocks);
        blocks_ = token_ < tokens ? minimum(exist, Shape::kBlocksOfCta) : 0;
        scales_a_ = scales.a + token_ * scales.a_stride_m + (first_block + block_) * scales.a_stride_k;
        scales_b_ = scales.b + first_block + block_;
        if (block_ == kBlocksOfPass) {  // threads left over, where tokens do not divide them
            block_ = Shape::kBlocksOfCta;
        }
    }

    /// Asks for the weight scales of this thread's first products.
    FP8GEMM_DEVICE void begin() { load_scales_b(0); }

    /// Writes this thread's products.
    FP8GEMM_DEVICE void write(OfBlock (&products)[Shape::kBlocksOfCta]) {
        write_batch(0, products);
#pragma unroll 1
        for (uint32_t pass = kBatch; pass < kPasses; pass += kBatch) {
            load_scales_b(pass);
            write_batch(pass, products);
        }
    }

private:
    /// This thread's K block of a pass.
    FP8GEMM_DEVICE uint32_t block_of(uint32_t pass) const { return block_ + pass * kBlocksOfPass; }

    FP8GEMM_DEVICE void load_scales_b(uint32_t first_pass) {
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t pass = first_pass + i;
            scales_b_of_batch_[i] = block_of(pass) < blocks_ ? scales_b_[pass * kBlocksOfPass] : 0.0f;
        }
    }

    FP8GEMM_DEVICE void write_batch(uint32_t first_pass, OfBlock (&products)[Shape::kBlocksOfCta]) const {
        float scales_a[kBatch];
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t pass = first_pass + i;
            // NOTE: Past the L1 cache, where each of these is wanted once. What the kernel ahead wrote, plain loads see too
            // (tests/gpu/test_early_reads.py), as those of B's scales are: all tokens want these, and L1 has them.
            scales_a[i] = block_of(pass) < blocks_ ? __ldcg(scales_a_ + pass * stride_of_pass_) : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t block = block_of(first_pass + i);
            if (block < Shape::kBlocksOfCta) {
                products[block][token_] = scales_a[i] * scales_b_of_batch_[i];
            }
        }
    }
};

}  // namespace fp8gemm
