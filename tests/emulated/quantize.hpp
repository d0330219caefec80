// The functions of fp8gemm::ptx that quantisers use, on the host, beside those of ptx.hpp; and static shared memory.
#pragma once

#include "ptx.hpp"

#undef __shared__
#define __shared__ static  // CTAs come one after the other

struct uint2 {
    uint32_t x, y;
};
inline float __uint_as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline float __int_as_float(uint32_t bits) {
    return __uint_as_float(bits);
}

namespace fp8gemm::ptx {

inline float max_or_nan(float a, float b) {
    return std::isnan(a) || std::isnan(b) ? __int_as_float(0x7fffffff) : std::fmax(a, b);
}
inline float reciprocal(float x) {
    return 1.0f / x;
}
inline float approximate_reciprocal(float x) {
    return 1.0f / x;
}
inline float approximate_exp2(float x) {
    return std::exp2(x);
}
inline float exchange(float value, uint32_t mask) {
    return __shfl_sync(0xffffffffu, value, lane_index() ^ mask);
}
inline float unpack_float16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return mantissa != 0 ? __int_as_float(0x7fffffff) : sign * __int_as_float(0x7f800000);
    }
    return sign * std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 1024), (exponent == 0 ? 1 : exponent) - 25);
}
/// To nearest, ties to even; what is past 448 becomes 448.
inline uint32_t e4m3(float value) {
    const uint32_t sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) {
        return 0x7f;
    }
    const double most = std::fmin(std::fabs(static_cast<double>(value)), 448.0);
    int exponent = most == 0 ? -6 : std::ilogb(most) < -6 ? -6 : std::ilogb(most);
    uint32_t steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(most, 3 - exponent)));  // 8 to 16 but for subnormals
    if (steps == 16) {
        steps = 8;
        ++exponent;
    }
    return sign | (steps < 8 ? steps : static_cast<uint32_t>(exponent + 7) << 3 | (steps - 8));
}
inline uint16_t pack_e4m3(float low, float high) {
    return static_cast<uint16_t>(e4m3(low) | e4m3(high) << 8);
}

}  // namespace fp8gemm::ptx
