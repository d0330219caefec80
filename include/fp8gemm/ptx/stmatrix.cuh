// Writes of a warp's fragments to shared memory.
#pragma once

#include "fp8gemm/ptx/mbarrier.cuh"

namespace fp8gemm::ptx {

/// stmatrix.sync.aligned.m8n8.x4: lane l gives the address of row l % 8 of matrix l / 8; of each matrix a lane holds
/// the two values of row l / 4, columns 2 (l % 4) and the next.
FP8GEMM_DEVICE void store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0),
                 "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

/// st.shared.v2.f32: two neighbouring floats; the address is a multiple of 8.
FP8GEMM_DEVICE void store_shared_pair(uint32_t address, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second) : "memory");
}

}  // namespace fp8gemm::ptx
