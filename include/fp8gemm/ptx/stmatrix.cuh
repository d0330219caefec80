// stmatrix: four 8x8 matrices of 16-bit values from a warp's fragments to shared memory.
#pragma once

#include "fp8gemm/ptx/mbarrier.cuh"

namespace fp8gemm::ptx {

/// cvt.rn.bf16x2.f32: two floats, rounded to nearest even, the first in the lower half.
FP8GEMM_DEVICE uint32_t pack_bfloat16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// stmatrix.sync.aligned.m8n8.x4: lane l gives the address of row l % 8 of matrix l / 8; of each matrix a lane holds
/// the two values of row l / 4, columns 2 (l % 4) and the next.
FP8GEMM_DEVICE void store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0),
                 "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

}  // namespace fp8gemm::ptx
