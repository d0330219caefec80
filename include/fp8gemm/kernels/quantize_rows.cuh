// Activations to FP8: one scale per row and 128 columns, written MN-major, which the GEMM reads in place. Of a plain
// input the bits are the reference's.
//
// Warp roles
//   all      each warp has kRows rows and two K blocks, one for each half of it: a lane has 8 columns of each row
//
// Shared memory, barriers: none
//
// A warp asks for all its rows before it computes; enough warps are in flight to keep memory busy, and one that has few
// rows is done as soon as its only load is. The scales of its rows are neighbours in memory: it writes them together.
//
// NOTE: The kernel behind this one may start at once; it finds its weights while this one runs. The one ahead of this
// one is waited for before anything is read or written, since the input comes from it, or memory that it still uses.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/encode.cuh"
#include "fp8gemm/quantize/source.cuh"

namespace fp8gemm {

template <class Config>
struct QuantizeRows {
    using Params = QuantizeParams;
    using From = Source<Config>;

    static constexpr uint32_t kNumThreads = Config::kWarps * 32;
    static constexpr uint32_t kRows = Config::kRows;
    static constexpr uint32_t kWarpCols = 2 * kBlockCols;

    static FP8GEMM_DEVICE void run(const Params& params) {
        ptx::launch_dependents();
        const uint32_t lane = ptx::lane_index();
        const uint32_t warp = blockIdx.x * Config::kWarps + ptx::warp_index();
        const uint32_t warps_of_row = ceil_div(params.k, kWarpCols);
        const uint32_t first_row = warp / warps_of_row * kRows;
        const uint32_t col = warp % warps_of_row * kWarpCols + lane * kValuesPerLane;
        ptx::wait_for_previous_grids();
        if (first_row >= params.rows) {
            return;
        }
        const uint32_t rows = minimum(params.rows - first_row, kRows);
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

private:
    static FP8GEMM_DEVICE void store_scales(float* destination, const float (&scales)[kRows], uint32_t rows) {
        if (kRows % 4 == 0 && rows == kRows) {
            // The pitch is a multiple of four floats, and so is the first row.
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
};

}  // namespace fp8gemm
