// What a quantiser is called with: one struct for all of them, so that the host has one table of offsets.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm {

/// Filled in by the host: fp8gemm/driver/arguments.py knows these offsets. Strides and pitches are in elements.
struct QuantizeParams {
    const void* x;         ///< (rows, k), or (rows, 2 k): gate and up side by side; with groups as many times
    const void* residual;  ///< (rows, k), if there is one
    const void* weight;    ///< (k,), of the norm, if there is one
    uint8_t* codes;        ///< (rows, k) e4m3, packed
    float* scales;         ///< of rows: (ceil(k / 128), scales_pitch), rows adjacent; of blocks: (rows / 128, k / 128)
    void* summed;          ///< (rows, k), packed: x + residual
    int64_t x_stride;
    int64_t residual_stride;
    uint32_t rows;
    uint32_t k;
    uint32_t scales_pitch;
    float eps;
    const int32_t* counts;   ///< (groups,): how many rows of a group there are, out of `rows`
    int64_t x_group_stride;  ///< codes and scales of groups are packed
    uint32_t groups;         ///< 0 where there are none
    uint32_t transposed_pitch;
    uint8_t* transposed;            ///< (k, rows rounded up to 128) e4m3, packed, if the transpose is asked for
    float* transposed_scales;       ///< its: (ceil(rows / 128), transposed_pitch), rows of the transpose adjacent
    const int64_t* rows_of_tokens;  ///< (rows, top_k): where each row of x goes; codes and scales have rows * top_k
    const int32_t* kept_rows;       ///< how many of these there are: the others are of no group
    uint32_t top_k;                 ///< 0 where rows stay in their order
};
static_assert(sizeof(QuantizeParams) == 144, "the host lays out this struct byte by byte");

}  // namespace fp8gemm
