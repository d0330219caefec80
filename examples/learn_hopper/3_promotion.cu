// Step 3: promotion. K is walked in blocks of 128; each block's sums, times its two scales, are added in FP32.
//
// Each CTA computes one 64x128 tile of D[M, N] = (A * scales_a)[M, K] (B * scales_b)[N, K]^T. Roles and barriers are
// those of step 1: warps 0-3 multiply, one thread of warp 4 asks for K blocks.
#include "fp8gemm/common/math.cuh"
#include "fp8gemm/mainloop/descriptor.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fragment.cuh"

using namespace fp8gemm;

constexpr uint32_t kTileM = 64, kTileN = 128, kBlockK = 128, kStages = 4;
using Ring = BarrierRing<kStages>;

struct Params {
    TensorMap a_map;        // (M, K) e4m3; a box is 64 rows of a K block, swizzled by 128 bytes
    TensorMap b_map;        // (N, K) e4m3; 128 rows, likewise
    const float* scales_a;  // (M, ceil(K / 128)), M contiguous
    const float* scales_b;  // (ceil(N / 128), ceil(K / 128)), K contiguous
    float* d;               // (M, N), packed
    uint32_t m, n, k;       // N is even
    uint32_t scales_pitch;  // from a K block's scales of A to the next one's
};

struct Shared {
    alignas(1024) uint8_t a[kStages][kTileM * kBlockK];
    alignas(1024) uint8_t b[kStages][kTileN * kBlockK];
    Ring ring;
};

FP8GEMM_DEVICE void load(const Params& params, Shared& shared, uint32_t row, uint32_t col) {
    auto state = Ring::State::for_writer();
    for (uint32_t k = 0; k < params.k; k += kBlockK) {
        shared.ring.wait_empty(state);
        uint64_t* full = &shared.ring.full[state.stage];
        ptx::mbarrier_arrive_expect_tx(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
        ptx::tma_load_2d(shared.a[state.stage], params.a_map, full, k, row);
        ptx::tma_load_2d(shared.b[state.stage], params.b_map, full, k, col);
        state.advance();
    }
}

/// By four warps, of which each has 16 rows, from `first_row` on.
FP8GEMM_DEVICE void multiply(const Params& params, Shared& shared, uint32_t first_row, uint32_t first_col) {
    const uint32_t k_blocks = ceil_div(params.k, kBlockK);
    const uint32_t row = first_row + ptx::lane_index() / 4;  // rows past the last are zeros, whatever their scale
    const float* upper = params.scales_a + minimum(row, params.m - 1);
    const float* lower = params.scales_a + minimum(row + 8, params.m - 1);
    const float* scales_b = params.scales_b + first_col / kTileN * k_blocks;
    auto state = Ring::State::for_reader();
    Fragment sums = {}, block_sums;
    for (uint32_t k_block = 0; k_block < k_blocks; ++k_block) {
        const float s_upper = upper[k_block * params.scales_pitch] * scales_b[k_block];
        const float s_lower = lower[k_block * params.scales_pitch] * scales_b[k_block];
        shared.ring.wait_full(state);
        ptx::wgmma_fence();
        ptx::Wgmma<kTileN>::multiply(block_sums, matrix_descriptor(shared.a[state.stage]),
                                     matrix_descriptor(shared.b[state.stage]));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        if (ptx::lane_index() == 0) {
            ptx::mbarrier_arrive(&shared.ring.empty[state.stage]);
        }
        state.advance();
#pragma unroll
        for (uint32_t i = 0; i < kTileN / 2; ++i) {
            ptx::fma_in_order(i % 4 < 2 ? s_upper : s_lower, block_sums[i], sums[i]);
        }
    }
    store(params.d, params.m, params.n, first_row, first_col, sums);
}

extern "C" __global__ void __launch_bounds__(160) promotion(const __grid_constant__ Params params) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
    const uint32_t tiles_n = ceil_div(params.n, kTileN);
    const uint32_t first_row = blockIdx.x / tiles_n * kTileM, first_col = blockIdx.x % tiles_n * kTileN;
    const uint32_t warp = ptx::warp_index();
    if (warp == 0 && ptx::elect_one()) {
        shared.ring.initialize(1, 4);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (warp < 4) {
        multiply(params, shared, first_row + warp * 16, first_col);
    } else if (ptx::elect_one()) {
        load(params, shared, first_row, first_col);
    }
}
