// The scales of neighbouring rows of one K block, which are neighbours in memory: written together where all are there.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm {

/// Stores the first `rows` of so many. `destination` is that of a row that is a multiple of `kRows`, by a pitch that is a
/// multiple of four floats.
template <uint32_t kRows>
FP8GEMM_DEVICE void store_scales(float* destination, const float (&scales)[kRows], uint32_t rows) {
    if (kRows % 4 == 0 && rows == kRows) {
#pragma unroll
        for (uint32_t i = 0; i + 3 < kRows; i += 4) {
            *reinterpret_cast<float4*>(destination + i) = {scales[i], scales[i + 1], scales[i + 2], scales[i + 3]};
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
        if (i < rows) {
            destination[i] = scales[i];
        }
    }
}

}  // namespace fp8gemm
