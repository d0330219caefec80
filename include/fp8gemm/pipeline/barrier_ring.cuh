// A ring of stages in shared memory, each guarded by two mbarriers:
//   full   the writer has filled the stage         (readers wait)
//   empty  every reader has finished with the stage (the writer waits)
//
// Writer and readers walk the ring with a PipelineState each: a stage index, and the parity of the phase to wait for,
// which flips each time the ring is wrapped. A wait for parity p returns once the phase of parity p has completed, so
// readers start at parity 0. The writer starts at parity 1, that of the phase "before" the first, which counts as
// completed: its first pass over the ring finds every stage empty.
#pragma once

#include "fp8gemm/ptx/mbarrier.cuh"

namespace fp8gemm {

template <uint32_t kStages>
struct PipelineState {
    uint32_t stage = 0;
    uint32_t parity;

    static FP8GEMM_DEVICE PipelineState for_writer() { return PipelineState{0, 1}; }
    static FP8GEMM_DEVICE PipelineState for_reader() { return PipelineState{0, 0}; }

    FP8GEMM_DEVICE void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <uint32_t kStages>
struct BarrierRing {
    using State = PipelineState<kStages>;

    uint64_t full[kStages];
    uint64_t empty[kStages];

    /// By one thread. `writers` and `readers` arrive once per phase each.
    FP8GEMM_DEVICE void initialize(uint32_t writers, uint32_t readers) {
        for (uint32_t stage = 0; stage < kStages; ++stage) {
            ptx::mbarrier_init(&full[stage], writers);
            ptx::mbarrier_init(&empty[stage], readers);
        }
    }

    FP8GEMM_DEVICE void wait_full(State state) { ptx::mbarrier_wait(&full[state.stage], state.parity); }
    FP8GEMM_DEVICE void wait_empty(State state) { ptx::mbarrier_wait(&empty[state.stage], state.parity); }
};

}  // namespace fp8gemm
