// Step 4: warp roles. Two warpgroups multiply, each its 64 rows of a 128x128 tile; a third one loads, and gives them its
// registers. Scales of A's rows now come with the operands, so that a stage must be released behind their reads as well.
//
// Each CTA computes one tile of D[M, N] = (A * scales_a)[M, K] (B * scales_b)[N, K]^T.
//
// Warp roles
//   warpgroup 0      one thread asks for K blocks
//   warpgroups 1, 2  multiply and promote
#include "k_loop.cuh"

struct Params {
    TensorMap a_map, b_map;  // (M, K) and (N, K) e4m3; a box is 128 rows of a K block, swizzled by 128 bytes
    TensorMap scales_a_map;  // (ceil(K / 128), M) float, M contiguous; a box is those of 128 rows in one K block
    const float* scales_b;   // (ceil(N / 128), ceil(K / 128)), K contiguous
    float* d;                // (M, N), packed
    uint32_t m, n, k;        // N is even
    uint32_t zero;           // 0, which the compiler does not know
};

extern "C" __global__ void __launch_bounds__(384, 1) warp_roles(const __grid_constant__ Params params) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto& stages = *reinterpret_cast<Stages*>(shared_bytes);
    const uint32_t tiles_n = ceil_div(params.n, kTileN);
    const uint32_t row = blockIdx.x / tiles_n * kTileM, col = blockIdx.x % tiles_n * kTileN;
    const uint32_t warp = ptx::warp_index();
    if (warp == 0 && ptx::elect_one()) {
        stages.ring.initialize(1, 8);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (warp < 4) {
        ptx::decrease_registers<40>();
        if (warp == 0 && ptx::elect_one()) {
            auto state = Ring::State::for_writer();
            load(params, stages, state, row, col);
        }
    } else {
        ptx::increase_registers<232>();
        auto state = Ring::State::for_reader();
        Fragment sums = {};
        multiply(params, stages, state, warp - 4, col, sums);
        store(params.d, params.m, params.n, row + (warp - 4) * 16, col, sums);
    }
}
