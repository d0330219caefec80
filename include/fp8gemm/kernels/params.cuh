// What a kernel is called with: one struct for every family, so that the host has one table of offsets.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm {

/// Filled in by the host: fp8gemm/driver/launch.py knows these offsets.
struct KernelParams {
    TensorMap a_map;         ///< (M, K) e4m3
    TensorMap b_map;         ///< (N, K) e4m3
    TensorMap scales_a_map;  ///< (ceil(K / 128), M) float, M contiguous
    TensorMap scales_b_map;  ///< (ceil(K / 128), N) float, N contiguous, if B is scaled by rows
    TensorMap d_map;         ///< (M, N), with TMA store
    TensorMap a_tail_map;    ///< as a_map; its box is the rows that whole boxes leave over; of groups a piece
    TensorMap b_tail_map;    ///< as b_map, likewise
    const float* scales_b;   ///< (ceil(N / 128), ceil(K / 128)), row-major, if B is scaled by blocks
    void* d;                 ///< (M, N), with predicated store; strides in elements
    int64_t d_stride_m;
    int64_t d_stride_n;
    const void* c;  ///< (M, N), if there is one
    int64_t c_stride_m;
    int64_t c_stride_n;
    const void* bias;         ///< (N,), if there is one
    uint32_t m;               ///< with Grouping::kMasked that of each group
    uint32_t static_weights;  ///< nonzero: B, its scales and what is whose may be read before the previous grids end
    const void* b;            ///< (N, K) e4m3, packed, where a kernel reads it without a map
    const float* scales_a;    ///< (M, ceil(K / 128)), where a kernel reads them without a map; strides in elements
    int64_t scales_a_stride_m;
    int64_t scales_a_stride_k;
    int64_t scales_a_stride_group;  ///< with Grouping::kMasked
    const int32_t* group_begins;    ///< (groups,): see scheduler/group_table.cuh
    const int32_t* group_ends;
    uint32_t k;     ///< of A and B, with Grouping::kColumns
    uint32_t zero;  ///< 0, which the compiler does not know: see mainloop/release.cuh
};
static_assert(sizeof(KernelParams) == 1088, "the host lays out this struct byte by byte");

}  // namespace fp8gemm
