// The streaming floor: reads the N x K bytes of a weight into shared memory once, and does nothing with them.
// What this takes is what any kernel that reads the weight takes at least; it is a yardstick of the benchmark.
//
// Warp roles
//   warp 0   one thread fills the stages by bulk copies, and fills each again as soon as it is full
//
// Shared memory (SharedStorage)
//   stages, full   kStages x bytes, kStages barriers
//
// Barriers   arrives                                    count   first wait, parity
//   full     the thread itself (expect_tx) + the bytes  1       the same thread, 1: nothing is on its way yet
//
// NOTE: One that depends on the kernel before it programmatically copies all that it has to before it waits for that
// one, as if each weight were static; and it waits before it ends, so that chained kernels end in order.
#pragma once

#include "fp8gemm/kernels/params.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fp8gemm/scheduler/stream.cuh"

namespace fp8gemm {

template <class Config>
struct Stream {
    using Params = KernelParams;
    using State = PipelineState<Config::kStages>;

    static constexpr uint32_t kNumThreads = 32;

    struct SharedStorage {
        alignas(128) uint8_t stages[Config::kStages][Config::kStageBytes];
        uint64_t full[Config::kStages];
    };
    static_assert(sizeof(SharedStorage) == Config::kSharedBytes, "the host computes another size of shared memory");

    static FP8GEMM_DEVICE void run(const Params& params) {
        extern __shared__ __align__(128) uint8_t shared_bytes[];
        auto& shared = *reinterpret_cast<SharedStorage*>(shared_bytes);
        ptx::launch_dependents();
        if (ptx::elect_one()) {
            for (uint64_t& barrier : shared.full) {
                ptx::mbarrier_init(&barrier, 1);
            }
            ptx::fence_mbarrier_init();
            copy(params, shared);
        }
        ptx::wait_for_previous_grids();
    }

private:
    static FP8GEMM_DEVICE void copy(const Params& params, SharedStorage& shared) {
        const auto* weight = static_cast<const uint8_t*>(params.b);
        StreamSchedule<Config> schedule(blockIdx.x, gridDim.x);
        State state = State::for_writer();
        Piece piece;
        while (schedule.next(piece)) {
            uint64_t* full = &shared.full[state.stage];
            ptx::mbarrier_wait(full, state.parity);
            ptx::mbarrier_arrive_expect_tx(full, piece.bytes);
            ptx::bulk_load(shared.stages[state.stage], weight + piece.offset, full, piece.bytes);
            state.advance();
        }
        // A CTA may not end while copies can still write to its shared memory.
        for (uint32_t i = 0; i < Config::kStages; ++i) {
            ptx::mbarrier_wait(&shared.full[state.stage], state.parity);
            state.advance();
        }
    }
};

}  // namespace fp8gemm
