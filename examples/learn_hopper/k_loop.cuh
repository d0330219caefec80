// The K loop of steps 4 and 5: one thread loads K blocks of a 128x128 tile, two warpgroups multiply 64 rows of it each.
//
// Barriers        arrives                               count   first wait, parity
//   ring.full     the loading thread + the bytes        1       multiplying threads, 0
//   ring.empty    one lane of each multiplying warp     8       loading thread, 1
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/mainloop/descriptor.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fragment.cuh"

using namespace fp8gemm;

constexpr uint32_t kTileM = 128, kTileN = 128, kBlockK = 128, kStages = 4;
constexpr uint32_t kWaveM = 64;  // rows of a warpgroup
using Ring = BarrierRing<kStages>;

struct Stages {
    alignas(1024) uint8_t a[kStages][kTileM * kBlockK];
    alignas(1024) uint8_t b[kStages][kTileN * kBlockK];
    alignas(128) float scales_a[kStages][kTileM];
    Ring ring;
};

/// By one thread.
template <class Params>
FP8GEMM_DEVICE void load(const Params& params, Stages& stages, Ring::State& state, uint32_t row, uint32_t col) {
    for (uint32_t k = 0; k < params.k; k += kBlockK) {
        stages.ring.wait_empty(state);
        uint64_t* full = &stages.ring.full[state.stage];
        ptx::mbarrier_arrive_expect_tx(full, sizeof(stages.a[0]) + sizeof(stages.b[0]) + sizeof(stages.scales_a[0]));
        ptx::tma_load_2d(stages.scales_a[state.stage], params.scales_a_map, full, row, k / kBlockK);
        ptx::tma_load_2d(stages.a[state.stage], params.a_map, full, k, row);
        ptx::tma_load_2d(stages.b[state.stage], params.b_map, full, k, col);
        state.advance();
    }
}

/// By both warpgroups, of which `warp` counts the warps.
template <class Params>
FP8GEMM_DEVICE void multiply(const Params& params, Stages& stages, Ring::State& state, uint32_t warp, uint32_t col,
                             Fragment& sums) {
    const uint32_t k_blocks = ceil_div(params.k, kBlockK);
    const float* scales_b = params.scales_b + col / kTileN * k_blocks;
    const uint32_t row = warp * 16 + ptx::lane_index() / 4;
    Fragment block_sums;
    for (uint32_t k_block = 0; k_block < k_blocks; ++k_block) {
        const float scale_b = scales_b[k_block];
        stages.ring.wait_full(state);
        const float upper = stages.scales_a[state.stage][row], lower = stages.scales_a[state.stage][row + 8];
        const uint8_t* a = stages.a[state.stage] + warp / 4 * kWaveM * kBlockK;
        ptx::wgmma_fence();
        ptx::Wgmma<kTileN>::multiply(block_sums, matrix_descriptor(a), matrix_descriptor(stages.b[state.stage]));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        const uint32_t loaded = ptx::and_in_order(__float_as_uint(upper) | __float_as_uint(lower), params.zero);
        __syncwarp();
        if (ptx::lane_index() == 0) {
            ptx::mbarrier_arrive(ptx::shared_address(&stages.ring.empty[state.stage]) + loaded);
        }
        state.advance();
        const float s_upper = upper * scale_b, s_lower = lower * scale_b;
#pragma unroll
        for (uint32_t i = 0; i < kTileN / 2; ++i) {
            ptx::fma_in_order(i % 4 < 2 ? s_upper : s_lower, block_sums[i], sums[i]);
        }
    }
}
