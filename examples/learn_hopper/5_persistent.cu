// Step 5: a persistent kernel. The grid is one CTA per SM, and each walks over tiles: while one tile is stored, the loads
// of the next are under way. The output goes through shared memory and out by TMA, which clips it at the edges.
//
// Warp roles are those of step 4; one thread of each multiplying warpgroup issues its bulk stores.
// Named barriers 1 and 2: the 128 threads of a multiplying warpgroup, before and after they write their part of `staged`.
#include "fp8gemm/ptx/arithmetic.cuh"
#include "fp8gemm/ptx/memory.cuh"
#include "k_loop.cuh"

constexpr uint32_t kHalfBytes = kWaveM * 64 * 2;  // of 64 columns of a warpgroup's rows, in bfloat16

struct Params {
    TensorMap a_map, b_map;  // (M, K) and (N, K) e4m3; a box is 128 rows of a K block, swizzled by 128 bytes
    TensorMap scales_a_map;  // (ceil(K / 128), M) float, M contiguous; a box is those of 128 rows in one K block
    TensorMap d_map;         // (M, N) bfloat16; a box is 64x64, swizzled by 128 bytes
    const float* scales_b;   // (ceil(N / 128), ceil(K / 128)), K contiguous
    uint32_t m, n, k;        // N is a multiple of 8
    uint32_t zero;           // 0, which the compiler does not know
};

struct Shared {
    Stages stages;
    alignas(1024) uint8_t staged[2][2][kHalfBytes];  // of each warpgroup the left and the right half
};

FP8GEMM_DEVICE void store(const Params& params, uint8_t (&staged)[2][kHalfBytes], uint32_t row, uint32_t col,
                          uint32_t warp, const Fragment& sums) {
    const uint32_t lane = ptx::lane_index(), barrier = 1 + warp / 4;
    const bool leads = threadIdx.x % 128 == 0;
    if (leads) {
        ptx::tma_store_wait_read();  // the tile before has left
    }
    ptx::named_barrier_sync(barrier, 128);
    const uint32_t staged_row = warp % 4 * 16 + lane % 16;
#pragma unroll
    for (uint32_t i = 0; i < kTileN / 2; i += 8) {  // 16 columns: two pieces of 16 bytes
        const uint32_t piece = i / 4 % 8 + lane / 16;
        const uint32_t place = staged_row * 128 + (piece ^ staged_row % 8) * 16;
        ptx::store_matrix_x4(ptx::shared_address(staged[i / 32]) + place, ptx::pack_bfloat16(sums[i], sums[i + 1]),
                             ptx::pack_bfloat16(sums[i + 2], sums[i + 3]), ptx::pack_bfloat16(sums[i + 4], sums[i + 5]),
                             ptx::pack_bfloat16(sums[i + 6], sums[i + 7]));
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(barrier, 128);
    if (leads) {
        ptx::tma_store_2d(params.d_map, staged[0], col, row);
        ptx::tma_store_2d(params.d_map, staged[1], col + 64, row);
        ptx::tma_store_commit();
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) persistent(const __grid_constant__ Params params) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
    const uint32_t tiles_n = ceil_div(params.n, kTileN), tiles = ceil_div(params.m, kTileM) * tiles_n;
    const uint32_t warp = ptx::warp_index();
    if (warp == 0 && ptx::elect_one()) {
        shared.stages.ring.initialize(1, 8);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (warp < 4) {
        ptx::decrease_registers<40>();
        if (warp == 0 && ptx::elect_one()) {
            auto state = Ring::State::for_writer();
            for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                load(params, shared.stages, state, tile / tiles_n * kTileM, tile % tiles_n * kTileN);
            }
        }
    } else {
        ptx::increase_registers<232>();
        const uint32_t warpgroup = (warp - 4) / 4;
        auto state = Ring::State::for_reader();
        for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const uint32_t row = tile / tiles_n * kTileM, col = tile % tiles_n * kTileN;
            Fragment sums = {};
            multiply(params, shared.stages, state, warp - 4, col, sums);
            store(params, shared.staged[warpgroup], row + warpgroup * kWaveM, col, warp - 4, sums);
        }
        ptx::tma_store_wait_read();  // shared memory outlives the last store's reads
    }
}
