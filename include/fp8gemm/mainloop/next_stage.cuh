// The stage that a consumer reads next, and whether it has been seen to be full.
#pragma once

#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/mbarrier.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

template <class Ring>
class NextStage {
    uint32_t first_;  ///< address of the ring's first full barrier
    typename Ring::State state_ = Ring::State::for_reader();
    bool is_full_ = false;
    uint32_t full_;

public:
    FP8GEMM_DEVICE explicit NextStage(Ring& ring) : first_(ptx::shared_address(&ring.full[0])) {
        ptx::compute_here(first_);  // or the ring's place is added anew for each K block: 0.6 and 0.9 % of 128x128
        full_ = first_;
    }

    FP8GEMM_DEVICE uint32_t index() const { return state_.stage; }

    /// Address of its full barrier.
    FP8GEMM_DEVICE uint32_t full() const { return full_; }

    /// Whether the look ahead has seen it full.
    FP8GEMM_DEVICE bool is_full() const { return is_full_; }

    /// Waits until it is full; whether it had not been seen so.
    FP8GEMM_DEVICE bool wait() const {
        if (!is_full_) {
            ptx::mbarrier_wait(full_, state_.parity);
        }
        return !is_full_;
    }

    FP8GEMM_DEVICE void advance() {
        state_.advance();
        full_ = first_ + state_.stage * sizeof(uint64_t);
    }

    /// The look ahead: whether it is full already. Nothing but the multiplication itself then stands between one block's
    /// promotion and the next block's WGMMAs (3 % of 4096x7168x16384, H200, 2026-11-20).
    FP8GEMM_DEVICE void look() { is_full_ = ptx::mbarrier_test(full_, state_.parity); }

    /// Has it waited for whatever has been seen, unless this holds.
    FP8GEMM_DEVICE void forget_unless(bool holds) { is_full_ = is_full_ && holds; }
};

}  // namespace fp8gemm
