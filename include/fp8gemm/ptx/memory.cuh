// Addresses of shared memory, writes to it that C++ has no words for, and prefetches of global memory.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm::ptx {

/// The 32-bit shared-window address that PTX instructions take.
FP8GEMM_DEVICE uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

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

/// prefetch.global.L2: the line that an address lies in.
FP8GEMM_DEVICE void prefetch_l2(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// @p ld.global.f32, or else 0, into the register that `value` is in. (The assembler may make a branch of it, and a move.)
FP8GEMM_DEVICE void load_global_in_place(bool exists, const float* source, float& value) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %2, 0;\n"
        "@!p mov.f32 %0, 0f00000000;\n"
        "@p ld.global.f32 %0, [%1];\n"
        "}"
        : "+f"(value)
        : "l"(source), "r"(static_cast<uint32_t>(exists))
        : "memory");
}

/// @p ld.shared::cta.f32, `kOffset` bytes behind an address: `value` stays as it is where `condition` is false.
template <uint32_t kOffset>
FP8GEMM_DEVICE void load_shared_if(bool condition, uint32_t address, float& value) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %2, 0;\n"
        "@p ld.shared::cta.f32 %0, [%1 + %3];\n"
        "}"
        : "+f"(value)
        : "r"(address), "r"(static_cast<uint32_t>(condition)), "n"(kOffset)
        : "memory");
}

}  // namespace fp8gemm::ptx
