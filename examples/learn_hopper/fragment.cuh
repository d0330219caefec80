// What a warp holds of a 64x128 tile, and how steps 2 to 4 store it.
#pragma once

#include "fp8gemm/ptx/thread.cuh"

using namespace fp8gemm;

using Fragment = float[64];  // of one thread

/// By a warp, which holds 16 rows of D (M, N), from `first_row` on; N is even.
FP8GEMM_DEVICE void store(float* d, uint32_t m, uint32_t n, uint32_t first_row, uint32_t first_col,
                          const Fragment& sums) {
    const uint32_t row = first_row + ptx::lane_index() / 4;
    const uint32_t col = first_col + ptx::lane_index() % 4 * 2;
    float* upper = d + uint64_t{row} * n + col;
    float* lower = upper + uint64_t{8} * n;
#pragma unroll
    for (uint32_t i = 0; i < 64; i += 4) {
        if (row < m && col + i * 2 < n) {
            *reinterpret_cast<float2*>(upper + i * 2) = make_float2(sums[i], sums[i + 1]);
        }
        if (row + 8 < m && col + i * 2 < n) {
            *reinterpret_cast<float2*>(lower + i * 2) = make_float2(sums[i + 2], sums[i + 3]);
        }
    }
}
