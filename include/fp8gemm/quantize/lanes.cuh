// Eight neighbouring values are one lane's, so that 16 lanes, half a warp, hold the 128 columns of a scale block.
#pragma once

#include "fp8gemm/ptx/arithmetic.cuh"

namespace fp8gemm {

constexpr uint32_t kValuesPerLane = 8;
constexpr uint32_t kLanesPerBlock = 16;
constexpr uint32_t kBlockCols = kValuesPerLane * kLanesPerBlock;

/// Eight values in float.
struct LaneValues {
    float value[kValuesPerLane];
};

/// `Storage` is an element in memory, `Raw` eight of them as they are loaded and stored: 16 bytes at a time.
template <InputType kType>
struct InputElement;

template <>
struct InputElement<InputType::kBfloat16> {
    using Storage = uint16_t;
    using Raw = uint4;
    static FP8GEMM_DEVICE float low(uint32_t pair) { return ptx::unpack_bfloat16(pair & 0xffffu); }
    static FP8GEMM_DEVICE float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
    static FP8GEMM_DEVICE uint32_t pack(float low, float high) { return ptx::pack_bfloat16(low, high); }
};

template <>
struct InputElement<InputType::kFloat16> {
    using Storage = uint16_t;
    using Raw = uint4;
    static FP8GEMM_DEVICE float low(uint32_t pair) { return ptx::unpack_float16(static_cast<uint16_t>(pair)); }
    static FP8GEMM_DEVICE float high(uint32_t pair) { return ptx::unpack_float16(static_cast<uint16_t>(pair >> 16)); }
    static FP8GEMM_DEVICE uint32_t pack(float low, float high) { return ptx::pack_float16(low, high); }
};

template <>
struct InputElement<InputType::kFloat32> {
    using Storage = float;
    struct Raw {
        float4 first;
        float4 second;
    };
};

/// Loads, stores and conversions of eight neighbours whose first element lies on a 16-byte boundary.
template <InputType kType>
struct Lane {
    using Element = InputElement<kType>;
    using Storage = typename Element::Storage;
    using Raw = typename Element::Raw;

    static FP8GEMM_DEVICE Raw load(const Storage* source) { return *reinterpret_cast<const Raw*>(source); }

    static FP8GEMM_DEVICE LaneValues unpack(const Raw& raw) {
        if constexpr (kType == InputType::kFloat32) {
            return {raw.first.x,  raw.first.y,  raw.first.z,  raw.first.w,
                    raw.second.x, raw.second.y, raw.second.z, raw.second.w};
        } else {
            return {Element::low(raw.x), Element::high(raw.x), Element::low(raw.y), Element::high(raw.y),
                    Element::low(raw.z), Element::high(raw.z), Element::low(raw.w), Element::high(raw.w)};
        }
    }

    /// Rounded to nearest even.
    static FP8GEMM_DEVICE Raw pack(const LaneValues& values) {
        const float (&v)[kValuesPerLane] = values.value;
        if constexpr (kType == InputType::kFloat32) {
            return {{v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}};
        } else {
            return {Element::pack(v[0], v[1]), Element::pack(v[2], v[3]), Element::pack(v[4], v[5]),
                    Element::pack(v[6], v[7])};
        }
    }

    /// Lets the compiler forget what it has made of `raw`, so that it converts anew instead of holding twice as many
    /// registers until the next use.
    static FP8GEMM_DEVICE void forget(Raw& raw) {
        if constexpr (kType != InputType::kFloat32) {
            asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
        }
    }

    static FP8GEMM_DEVICE void store(Storage* destination, const Raw& raw) {
        *reinterpret_cast<Raw*>(destination) = raw;
    }
};

}  // namespace fp8gemm
