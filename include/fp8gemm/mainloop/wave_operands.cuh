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

    uint64_t a_;  ///< this warpgroup's rows and columns in stage 0
    uint64_t b_;
    uint64_t first_a_;  ///< with kScalesAhead, of the first wave of the K block that is multiplied next
    uint64_t first_b_;

public:
    /// `share` is that of K that the warpgroup multiplies, `zero` that of the kernel's parameters.
    FP8GEMM_DEVICE WaveOperands(const Stages& stages, WarpgroupOrigin<Shape, Config> origin, uint32_t share,
                                uint32_t zero)
        : a_(kept(matrix_descriptor(stages.a[share] + origin.row * Shape::kBlockK), zero)),
          b_(kept(matrix_descriptor(stages.b[share] + origin.col * Shape::kBlockK), zero)) {}

    /// As soon as the K block's stage is known, beside the last wave of the one before: its first WGMMA then follows the
    /// wait for the stage at once (1.4 to 1.9 % of three products at 128x256, H200, 2026-11-30; nothing of three at
    /// 128x192, which has one wave).
    FP8GEMM_DEVICE void describe_first(uint32_t stage) {
        if constexpr (kScalesAhead) {
            first_a_ = in_stage(a_, stage, Stages::kStageBytesA);
            first_b_ = in_stage(b_, stage, Stages::kStageBytesB);
            ptx::compute_here(first_a_);
            ptx::compute_here(first_b_);
        }
    }

    /// Starts block_sums = the product of wave (m, n) over one K block.
    FP8GEMM_DEVICE void multiply(uint32_t stage, uint32_t m, uint32_t n,
                                 float (&block_sums)[Shape::kWaveRegisters]) const {
        // Described ahead of the fence: the compiler orders the machine code of 128x256 in another way otherwise.
        const uint64_t a =
            in_stage(a_, stage, Stages::kStageBytesA) + descriptor_offset(m * Shape::kWaveM * Shape::kBlockK);
        const uint64_t b =
            in_stage(b_, stage, Stages::kStageBytesB) + descriptor_offset(n * Shape::kWaveN * Shape::kBlockK);
        ptx::wgmma_fence();
        if (kScalesAhead && m == 0 && n == 0) {
            Wgmma::multiply(block_sums, first_a_, first_b_);
        } else {
            Wgmma::multiply(block_sums, a, b);
        }
        ptx::wgmma_commit();
    }

private:
    /// The same, as a number of which the compiler knows nothing. By one that it knows, the arithmetic of the next stage
    /// comes between a K block's first two WGMMAs, where that has several waves: 16 instructions instead of 6, by which
    /// three products at 128x256 are 0.2 to 0.3 % slower in bursts, -0.1 to +0.9 under load (H200, 2026-11-30).
    FP8GEMM_DEVICE static uint64_t kept(uint64_t descriptor, uint32_t zero) {
        const uint32_t low = ptx::same_in_warp(static_cast<uint32_t>(descriptor));
        const uint32_t high = ptx::same_in_warp(static_cast<uint32_t>(descriptor >> 32) + zero);
        return uint64_t{high} << 32 | low;
    }
};

}  // namespace fp8gemm
