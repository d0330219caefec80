// Float operations that C++ has no operator for.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm::ptx {

/// max.NaN.f32: the larger one, or NaN if either is.
FP8GEMM_DEVICE float max_or_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

/// rcp.rn.f32: 1 / x, rounded to nearest even.
FP8GEMM_DEVICE float reciprocal(float x) {
    float result;
    asm("rcp.rn.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// rcp.approx.f32: 1 / x to 1 ulp.
FP8GEMM_DEVICE float approximate_reciprocal(float x) {
    float result;
    asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// ex2.approx.f32: 2^x to 2 ulp.
FP8GEMM_DEVICE float approximate_exp2(float x) {
    float result;
    asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// sqrt.rn.f32, then rcp.rn.f32.
FP8GEMM_DEVICE float inverse_square_root(float x) {
    float root;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(root) : "f"(x));
    return reciprocal(root);
}

/// shfl.sync.bfly: the value of the lane whose index differs from this one's by the bits of `mask`.
FP8GEMM_DEVICE float exchange(float value, uint32_t mask) {
    return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}

}  // namespace fp8gemm::ptx
