// A stage may be handed back when all of it has been read: the operands by WGMMA, which the wait for the wave says; and
// the scales into registers, which nothing says. A load that was issued is not a load that is done: it queues behind the
// stores ahead of it, and an arrival at an mbarrier does not queue with it. Only an instruction that reads a register waits
// for the load that fills it, and the compiler is free to put the first of these, a promotion's, behind the arrival. (So
// it did: one call in 500 of some kernels took a row's scales from the stage's next occupant; H200, 2026-11-22.) So
//   - the arrival's address contains the loaded scales, and'ed with a zero that only the host knows to be one; or
//   - where scales are too many for that (kHoldsBack), a stage is handed back when the next K block has been multiplied.
//     That one's sums are in the registers that the promotion before read its own from, so the promotion was issued before
//     it. This is so because the assembler gives all waves the same registers, of which there are no others to give. The
//     last one, for which another CTA may wait, is handed back behind the epilogue, which has read all sums; so is that of
//     a tile before one that is passed over, whose own have nothing to be loaded.
// tests/jit/test_machine_order.py looks for both in the machine code.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

/// A consumer warp's side of handing stages back, in their order.
template <class Config>
class StageRelease {
    using Ring = BarrierRing<Config::kStages>;

public:
    /// Whether a stage is handed back one K block late.
    static constexpr bool kHoldsBack = Config::kScaling == Scaling::kRow && Config::kWavesInFlight == 1;
    static_assert(!kHoldsBack || Config::kStages > 1, "no stage is left for the next K block");
    static_assert(!kHoldsBack || TileShape<Config>::kWarpgroups > 1, "registers are left to give waves different ones");

private:
    uint32_t lane_;
    uint32_t zero_;           ///< which the compiler does not know
    uint32_t pending_ = 0;    ///< 0, once the scales of all waves finished of a K block have been loaded
    uint32_t held_back_ = 0;  ///< address of the full barrier of the stage that is handed back next
    uint32_t nobody_ = kHoldsBack ? kThreadsPerWarp : 0;  ///< not 0 until there is one

public:
    /// `zero` is that of the kernel's parameters.
    FP8GEMM_DEVICE StageRelease(uint32_t lane, uint32_t zero) : lane_(lane), zero_(zero) {}

    /// 0, once what `loaded` was made of has been loaded.
    FP8GEMM_DEVICE uint32_t pending(uint32_t loaded) const { return kHoldsBack ? 0 : ptx::and_in_order(loaded, zero_); }

    /// Notes what has to be loaded before the next stage is handed back.
    FP8GEMM_DEVICE void wait_for(uint32_t pending) { pending_ |= pending; }

    /// Hands back the stage of a K block of which the last wave, if there was one, has been waited for, or that of the K
    /// block before. Stages are told by the address of their full barrier.
    FP8GEMM_DEVICE void release(uint32_t full) {
        if constexpr (kHoldsBack) {
            arrive_empty(held_back_);
            held_back_ = full;
            nobody_ = 0;
        } else {
            arrive_empty(full + pending_);
            pending_ = 0;
        }
    }

    /// Hands back the stage that is held back, if there is one.
    FP8GEMM_DEVICE void finish() {
        if constexpr (kHoldsBack) {
            release(0);
        }
    }

private:
    /// One arrival per warp at every CTA that writes into this one's stage. Loads are instructions of whole warps, so that
    /// it is enough if the lane that arrives has waited for them.
    FP8GEMM_DEVICE void arrive_empty(uint32_t full) {
        constexpr uint32_t kSharers = TileShape<Config>::kSharers;
        constexpr uint32_t kFromFullToEmpty = sizeof(Ring::full);
        __syncwarp();
        if constexpr (kSharers == 1) {
            if ((lane_ | nobody_) == 0) {
                ptx::mbarrier_arrive<kFromFullToEmpty>(full);
            }
        } else if ((lane_ | nobody_) < kSharers) {
            ptx::mbarrier_arrive_cluster(full + kFromFullToEmpty, lane_);
        }
    }
};

}  // namespace fp8gemm
