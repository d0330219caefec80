// The smallest kernel of which racecheck reports a race that is none. Warp 0 writes, warp 1 reads what other lanes wrote,
// and an mbarrier is between them. If every lane of warp 0 arrives there, racecheck finds nothing. If the lanes meet in
// __syncwarp and the first one arrives for all, it does, although every write comes before that arrival: __syncwarp
// orders memory among its lanes, the arrival releases, the wait acquires, and in the memory model of PTX such orders
// follow from each other.
//
// sanitize_limits.py defines kEveryLaneArrives ahead of this.
#include "fp8gemm/ptx/mbarrier.cuh"
#include "fp8gemm/ptx/thread.cuh"

using namespace fp8gemm;

constexpr uint32_t kLanes = 32;

/// By two warps: lane numbers from one and up to `out` (32,), those of neighbours exchanged.
extern "C" __global__ void fp8gemm_kernel(uint32_t* out) {
    constexpr uint32_t kArrivals = kEveryLaneArrives ? kLanes : 1;
    __shared__ uint32_t slot[kLanes];
    __shared__ uint64_t written;
    const uint32_t lane = ptx::lane_index();
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&written, kArrivals);
    }
    __syncthreads();
    if (ptx::warp_index() == 0) {
        slot[lane] = lane + 1;
        __syncwarp();
        if (lane < kArrivals) {
            ptx::mbarrier_arrive(&written);
        }
    } else {
        ptx::mbarrier_wait(&written, 0);
        out[lane] = slot[lane ^ 1];
    }
}
