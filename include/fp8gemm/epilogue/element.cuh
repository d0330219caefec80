// Element types at the kernel's edge: floats become outputs, and the addends' elements become floats.
#pragma once

#include "fp8gemm/ptx/arithmetic.cuh"

namespace fp8gemm {

/// Two neighbours, read or written at once where their address is a multiple of both.
template <class T>
struct alignas(2 * sizeof(T)) ElementPair {
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

/// `Storage` is one element in memory.
template <Addend kType>
struct AddendElement;

template <>
struct AddendElement<Addend::kBfloat16> {
    using Storage = uint16_t;
    static FP8GEMM_DEVICE float to_float(Storage element) { return ptx::unpack_bfloat16(element); }
};

template <>
struct AddendElement<Addend::kFloat32> {
    using Storage = float;
    static FP8GEMM_DEVICE float to_float(Storage element) { return element; }
};

/// Which no thread reads.
template <>
struct AddendElement<Addend::kInPlace> {
    using Storage = float;
};

}  // namespace fp8gemm
