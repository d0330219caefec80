// What include/fp8gemm/ptx/arithmetic.cuh has for dense products, on the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

namespace fp8gemm::ptx {

inline uint32_t pack_bfloat16(float low, float high) {
    const auto rounded = [](float value) {  // to nearest even; of finite values, and infinite ones
        const uint32_t bits = __float_as_uint(value);
        return value != value ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return rounded(low) | rounded(high) << 16;
}
inline uint32_t pack_float16(float low, float high) {
    const _Float16 pair[2] = {static_cast<_Float16>(low), static_cast<_Float16>(high)};
    uint32_t bits;
    std::memcpy(&bits, pair, 4);
    return bits;
}
inline float unpack_bfloat16(uint32_t bits) {
    float value;
    bits <<= 16;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline void fma_in_order(float scale, float product, float& sum) {
    sum = std::fma(scale, product, sum);
}

}  // namespace fp8gemm::ptx
