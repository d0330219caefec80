// Integer arithmetic on tile counts and sizes.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm {

template <class T>
FP8GEMM_HOST_DEVICE constexpr T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}

template <class T>
FP8GEMM_HOST_DEVICE constexpr T minimum(T a, T b) {
    return a < b ? a : b;
}

template <class T>
FP8GEMM_HOST_DEVICE constexpr T maximum(T a, T b) {
    return a < b ? b : a;
}

template <class T>
FP8GEMM_HOST_DEVICE constexpr T greatest_common_divisor(T a, T b) {
    return b == 0 ? a : greatest_common_divisor(b, a % b);
}

/// What the L2 of any chip of the family holds at most.
constexpr uint64_t kL2Bytes = 60 << 20;

FP8GEMM_HOST_DEVICE constexpr bool is_larger_than_l2(uint32_t rows, uint32_t cols, uint32_t element_bytes) {
    return uint64_t{rows} * cols * element_bytes > kL2Bytes;
}

}  // namespace fp8gemm
