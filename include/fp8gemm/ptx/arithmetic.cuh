// Float operations that C++ has no operator for, and conversions between floats and the formats of inputs, outputs and
// addends.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm::ptx {

/// cvt.rn.bf16x2.f32: two floats, rounded to nearest even, the first in the lower half.
FP8GEMM_DEVICE uint32_t pack_bfloat16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// cvt.rn.f16x2.f32: the same for float16; what is past its range becomes infinite.
FP8GEMM_DEVICE uint32_t pack_float16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// A bfloat16 is the upper half of the float it stands for.
FP8GEMM_DEVICE float unpack_bfloat16(uint32_t bits) {
    return __uint_as_float(bits << 16);
}

/// cvt.f32.f16: exact.
FP8GEMM_DEVICE float unpack_float16(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

/// cvt.rn.satfinite.e4m3x2.f32: two floats to FP8, rounded to nearest even, the first in the lower byte. What is past
/// 448 becomes 448; NaN stays NaN.
FP8GEMM_DEVICE uint16_t pack_e4m3(float low, float high) {
    uint16_t packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}

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
