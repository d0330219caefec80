// What one warp does: loads some neighbouring rows of two K blocks, and stores their codes and scales.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/quantize/encode.cuh"
#include "fp8gemm/quantize/source.cuh"
#include "fp8gemm/quantize/store_scales.cuh"

namespace fp8gemm {

constexpr uint32_t kColsOfWarp = 2 * kBlockCols;

template <class Config, uint32_t kRows>
struct RowsOfWarp {
    using From = Source<Config>;

    /// Quantises `rows` rows, at most `kRows`, from `first_row` on. By whole warps: `col` is the first of this lane's eight
    /// columns.
    static FP8GEMM_DEVICE void quantize(const QuantizeParams& params, uint32_t first_row, uint32_t rows, uint32_t col,
                                        uint32_t lane) {
        const bool inside = col < params.k;

        typename From::Raw raw[kRows] = {};
#pragma unroll
        for (uint32_t i = 0; i < kRows; ++i) {
            if (inside && i < rows) {
                raw[i] = From::load(params, first_row + i, col);
            }
        }
        float scales[kRows];
#pragma unroll
        for (uint32_t i = 0; i < kRows; ++i) {
            const LaneValues values = From::values(raw[i]);
            scales[i] = scale_of(largest_of_lanes<kLanesPerBlock>(largest(values)));
            if (inside && i < rows) {
                const uint2 codes = encode(values, typename From::Divider(scales[i]));
                uint8_t* destination = params.codes + static_cast<int64_t>(first_row + i) * params.k + col;
                *reinterpret_cast<uint2*>(destination) = codes;
            }
        }
        if (inside && lane % kLanesPerBlock == 0) {
            store_scales(params.scales + static_cast<int64_t>(col / kBlockCols) * params.scales_pitch + first_row,
                         scales, rows);
        }
    }
};

}  // namespace fp8gemm
