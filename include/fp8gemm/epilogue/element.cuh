// Element types at the kernel's edge: floats become outputs, and the addends' elements become floats.
#pragma once

#include "fp8gemm/ptx/convert.cuh"

namespace fp8gemm {

template <class T>
struct ElementPair {
    T first;
    T second;
};

/// `Storage` is one element in memory; `pack`, where there are two of them to a word, rounds two neighbours to nearest
/// even, the first into the lower half.
template <OutputType kType>
struct OutputElement;

template <>
struct OutputElement<OutputType::kBfloat16> {
    using Storage = uint16_t;
    static FP8GEMM_DEVICE uint32_t pack(float first, float second) { return ptx::pack_bfloat16(first, second); }
};

template <>
struct OutputElement<OutputType::kFloat16> {
    using Storage = uint16_t;
    static FP8GEMM_DEVICE uint32_t pack(float first, float second) { return ptx::pack_float16(first, second); }
};

template <>
struct OutputElement<OutputType::kFloat32> {
    using Storage = float;
};

/// `load` and `load_pair` read one element, and two neighbours from an address that is a multiple of both.
template <Addend kType>
struct AddendElement;

template <>
struct AddendElement<Addend::kBfloat16> {
    using Storage = uint16_t;
    static FP8GEMM_DEVICE float load(const Storage* source) { return ptx::unpack_bfloat16(*source); }
    static FP8GEMM_DEVICE ElementPair<float> load_pair(const Storage* source) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(source);
        return {ptx::unpack_bfloat16(pair & 0xffffu), ptx::unpack_bfloat16(pair >> 16)};
    }
};

template <>
struct AddendElement<Addend::kFloat32> {
    using Storage = float;
    static FP8GEMM_DEVICE float load(const Storage* source) { return *source; }
    static FP8GEMM_DEVICE ElementPair<float> load_pair(const Storage* source) {
        const float2 pair = *reinterpret_cast<const float2*>(source);
        return {pair.x, pair.y};
    }
};

}  // namespace fp8gemm
