// A stage may be handed back when all of it has been read: the operands by WGMMA, which the wait for the wave says; and
// the scales into registers, which nothing says. A load that was issued is not a load that is done: it queues behind the
// stores ahead of it, and an arrival at an mbarrier does not queue with it. Only an instruction that reads a register waits
// for the load that fills it, and the compiler is free to put the first of these, a promotion's, behind the arrival. (So
// it did: one call in 500 of some kernels took a row's scales from the stage's next occupant; H200, 2026-11-22.) So the
// arrival's address contains the loaded scales, and'ed with a zero that only the host knows to be one.
// tests/jit/test_machine_order.py looks for it in the machine code.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

/// A consumer warp's side of handing stages back, in their order.
template <class Config>
class StageRelease {
    using Ring = BarrierRing<Config::kStages>;

    uint32_t lane_;
    uint32_t zero_;         ///< which the compiler does not know
    uint32_t pending_ = 0;  ///< 0, once the scales of all waves finished of a K block have been loaded

public:
    /// `zero` is that of the kernel's parameters.
    FP8GEMM_DEVICE StageRelease(uint32_t lane, uint32_t zero) : lane_(lane), zero_(zero) {}

    /// 0, once what `loaded` was made of has been loaded.
    FP8GEMM_DEVICE uint32_t pending(uint32_t loaded) const { return ptx::and_in_order(loaded, zero_); }

    FP8GEMM_DEVICE uint32_t pending(const float (&loaded)[2]) const {
        return pending(__float_as_uint(loaded[0]) | __float_as_uint(loaded[1]));
    }

    /// Notes what has to be loaded before the next stage is handed back.
    FP8GEMM_DEVICE void wait_for(uint32_t pending) { pending_ |= pending; }

    /// Hands back the stage of a K block of which the last wave, if there was one, has been waited for. Stages are told by
    /// the address of their full barrier.
    FP8GEMM_DEVICE void release(uint32_t full) {
        arrive_empty(full + pending_);
        pending_ = 0;
    }

private:
    /// One arrival per warp at every CTA that writes into this one's stage. Loads are instructions of whole warps, so that
    /// it is enough if the lane that arrives has waited for them.
    FP8GEMM_DEVICE void arrive_empty(uint32_t full) {
        constexpr uint32_t kSharers = TileShape<Config>::kSharers;
        constexpr uint32_t kFromFullToEmpty = sizeof(Ring::full);
        __syncwarp();
        if constexpr (kSharers == 1) {
            if (lane_ == 0) {
                ptx::mbarrier_arrive<kFromFullToEmpty>(full);
            }
        } else if (lane_ < kSharers) {
            ptx::mbarrier_arrive_cluster(full + kFromFullToEmpty, lane_);
        }
    }
};

}  // namespace fp8gemm
