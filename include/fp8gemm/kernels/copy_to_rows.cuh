// Codes and scales of tokens to the rows that route_tokens.cuh found for them, each read once for all its rows. Scales may
// lie anyhow; they are written MN-major, which the GEMM reads in place.
//
// Warp roles
//   all      each warp has a token and 512 columns: a lane has 16 of them, the first of a K block's lanes its scale, and
//            each one of the token's rows; it gives the number of that to the others
//
// Shared memory, barriers: none
//
// Rows of no group, which come from params.kept_rows on, are not written: nobody reads them.
//
// NOTE: The kernel behind this one may start at once; it finds its weights while this one runs. The one ahead of this
// one is waited for before anything is read or written: rows of tokens come from it, or codes.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/lanes.cuh"
#include "fp8gemm/quantize/rows_of_token.cuh"

namespace fp8gemm {

/// Filled in by the host: fp8gemm/driver/arguments.py knows these offsets. Strides and pitches are in elements.
struct CopyParams {
    const uint8_t* codes;      ///< (tokens, k) e4m3
    const float* scales;       ///< (tokens, ceil(k / 128))
    uint8_t* codes_of_rows;    ///< as many rows as these tokens have or more, and k columns, packed
    float* scales_of_rows;     ///< (ceil(k / 128), scales_pitch), rows adjacent
    const int64_t* rows;       ///< (tokens, top_k)
    const int32_t* kept_rows;  ///< how many rows are of a group; those from there on are not written
    int64_t codes_stride;      ///< from token to token
    int64_t scales_stride;     ///< likewise
    int64_t scales_stride_k;   ///< from K block to K block
    uint32_t tokens;
    uint32_t top_k;
    uint32_t k;
    uint32_t scales_pitch;
};
static_assert(sizeof(CopyParams) == 88, "the host lays out this struct byte by byte");

template <class Config>
struct CopyToRows {
    using Params = CopyParams;

    static constexpr uint32_t kNumThreads = Config::kWarps * 32;
    static constexpr uint32_t kBytesOfLane = 16;
    static constexpr uint32_t kColsOfWarp = 32 * kBytesOfLane;

    static FP8GEMM_DEVICE void run(const Params& params) {
        ptx::launch_dependents();
        const uint32_t lane = ptx::lane_index();
        const uint32_t warp = blockIdx.x * Config::kWarps + ptx::warp_index();
        const uint32_t warps_of_row = ceil_div(params.k, kColsOfWarp);
        const uint32_t token = warp / warps_of_row;
        const uint32_t col = warp % warps_of_row * kColsOfWarp + lane * kBytesOfLane;
        ptx::wait_for_previous_grids();
        if (token >= params.tokens) {
            return;
        }
        RowsOfToken rows(params.rows, token, params.top_k, lane);
        const auto kept_rows = static_cast<uint32_t>(*params.kept_rows);
        const bool inside = col < params.k;
        const bool has_scale = inside && col % kBlockCols == 0;
        const uint32_t block = col / kBlockCols;
        uint4 codes = {};
        float scale = 0;
        if (inside) {
            codes = *reinterpret_cast<const uint4*>(params.codes + token * params.codes_stride + col);
        }
        if (has_scale) {
            scale = params.scales[token * params.scales_stride + block * params.scales_stride_k];
        }
        rows.for_each([&](uint32_t row) {
            if (inside && row < kept_rows) {
                *reinterpret_cast<uint4*>(params.codes_of_rows + static_cast<int64_t>(row) * params.k + col) = codes;
                if (has_scale) {
                    params.scales_of_rows[static_cast<int64_t>(block) * params.scales_pitch + row] = scale;
                }
            }
        });
    }
};

}  // namespace fp8gemm
