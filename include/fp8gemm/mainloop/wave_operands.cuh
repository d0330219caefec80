// The operands of a warpgroup's waves, as WGMMA is told of them.
#pragma once

#include "fp8gemm/mainloop/descriptor.cuh"
#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/wgmma.cuh"

namespace fp8gemm {

/// Starts a warpgroup's WGMMAs. `kScalesAhead`: a K block's scales are in registers before it is multiplied.
template <class Config, bool kScalesAhead>
class WaveOperands {
    using Shape = TileShape<Config>;
    using Stages = OperandStages<Config>;
    using Wgmma = ptx::Wgmma<Shape::kWaveN>;

    /// Whether the WGMMAs of a K block's first wave are described ahead of them: with its scales, or where it is wide.
    /// Narrower ones lose up to 1.4 % by it (128x144, 192x96), and beside C the compiler would keep descriptors of
    /// 128x160 in vector registers. Row scales, and two waves in flight, were not measured.
    static constexpr bool kIsWide = Config::kScaling == Scaling::kBlock && Config::kWavesInFlight == 1 &&
                                    Shape::kWaveN >= 160 && !is_read(Config::kC);
    static constexpr bool kFirstAhead = kScalesAhead || kIsWide;

    uint32_t a_;  ///< addresses of this warpgroup's rows and columns in stage 0
    uint32_t b_;
    ptx::Descriptors first_a_;  ///< with kFirstAhead, of the first wave of the K block that is multiplied next
    ptx::Descriptors first_b_;

public:
    /// `share` is that of K that the warpgroup multiplies.
    FP8GEMM_DEVICE WaveOperands(const Stages& stages, WarpgroupOrigin<Shape, Config> origin, uint32_t share)
        : a_(descriptor_address(stages.a[share]) + descriptor_offset(origin.row * Shape::kBlockK)),
          b_(descriptor_address(stages.b[share]) + descriptor_offset(origin.col * Shape::kBlockK)) {}

    /// As soon as the K block's stage is known, beside the last wave of the one before: its WGMMAs then follow the wait for
    /// the stage, and one another, at once (0.8 % of 4096x4096x7168 at 128x256, in bursts, H200, 2026-11-24; 2 % of two
    /// products at 128x160, 0.2 % of nine at 128x192, 2026-11-29). Behind the back edge of the main loop there would be
    /// 14 instructions (-0.1 to +0.5 % at seven products, 2026-11-28).
    FP8GEMM_DEVICE void describe_first(uint32_t stage) {
        if constexpr (kFirstAhead) {
            first_a_ = block_descriptors(a_ + descriptor_offset(stage * Stages::kStageBytesA));
            first_b_ = block_descriptors(b_ + descriptor_offset(stage * Stages::kStageBytesB));
            ptx::compute_here(first_a_);
            ptx::compute_here(first_b_);
        }
    }

    /// Starts block_sums = the product of wave (m, n) over one K block.
    FP8GEMM_DEVICE void multiply(uint32_t stage, uint32_t m, uint32_t n,
                                 float (&block_sums)[Shape::kWaveRegisters]) const {
        const uint32_t a = a_ + descriptor_offset(stage * Stages::kStageBytesA + m * Shape::kWaveM * Shape::kBlockK);
        const uint32_t b = b_ + descriptor_offset(stage * Stages::kStageBytesB + n * Shape::kWaveN * Shape::kBlockK);
        ptx::wgmma_fence();
        if (kFirstAhead && m == 0 && n == 0) {
            Wgmma::multiply(block_sums, first_a_, first_b_);
        } else {
            Wgmma::multiply(block_sums, block_descriptors(a), block_descriptors(b));
        }
        ptx::wgmma_commit();
    }
};

}  // namespace fp8gemm
