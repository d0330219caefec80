// Tokens to FP8, each once for all the experts that it goes to: one scale per row and 128 columns, codes and MN-major scales
// written to every row that route_tokens.cuh found for it. What is written of a row is, to the bit, what quantize_rows.cuh
// writes of its token.
//
// Warp roles
//   all      each warp has a token and two K blocks, one for each half of it: a lane has 8 columns, and where a token goes,
//            one of its rows; it gives the number of that to the others
//
// Shared memory, barriers: none
//
// Rows of no group, which come from params.kept_rows on, are not written: nobody reads them.
//
// NOTE: The kernel behind this one may start at once; it finds its weights while this one runs. The one ahead of this
// one is waited for before anything is read or written: rows of tokens come from it, and the input.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/encode.cuh"
#include "fp8gemm/quantize/rows_of_token.cuh"
#include "fp8gemm/quantize/rows_of_warp.cuh"
#include "fp8gemm/quantize/source.cuh"

namespace fp8gemm {

template <class Config>
struct QuantizeToRows {
    using Params = QuantizeParams;
    using From = PlainSource<Config>;

    static constexpr uint32_t kNumThreads = Config::kWarps * 32;

    /// What a warp has: a token, and of its columns those from each lane's first one on.
    struct Place {
        uint32_t token;
        uint32_t col;
        bool inside;

        FP8GEMM_DEVICE Place(const Params& params, uint32_t cta, uint32_t lane) {
            const uint32_t warp = cta * Config::kWarps + ptx::warp_index();
            const uint32_t warps_of_row = ceil_div(params.k, kColsOfWarp);
            token = warp / warps_of_row;
            col = warp % warps_of_row * kColsOfWarp + lane * kValuesPerLane;
            inside = col < params.k;
        }
    };

    static FP8GEMM_DEVICE void run(const Params& params) {
        ptx::launch_dependents();
        const uint32_t lane = ptx::lane_index();
        const Place place(params, blockIdx.x, lane);
        ptx::wait_for_previous_grids();
        if (place.token >= params.rows) {
            return;
        }
        const typename From::Raw raw = load(params, place);
        RowsOfToken rows(params.rows_of_tokens, place.token, params.top_k, lane);
        const auto kept_rows = static_cast<uint32_t>(*params.kept_rows);
        write(params, place, raw, lane, rows, kept_rows);
    }

    static FP8GEMM_DEVICE typename From::Raw load(const Params& params, const Place& place) {
        typename From::Raw raw = {};
        if (place.inside) {
            raw = From::load(params, place.token, place.col);
        }
        return raw;
    }

    /// Quantises a warp's columns, and writes them to each of `rows` that is less than `kept_rows`.
    template <class Rows>
    static FP8GEMM_DEVICE void write(const Params& params, const Place& place, const typename From::Raw& raw,
                                     uint32_t lane, Rows& rows, uint32_t kept_rows = 0xffffffffu) {
        const LaneValues values = From::values(raw);
        const float scale = scale_of(largest_of_lanes<kLanesPerBlock>(largest(values)));
        const uint2 codes = encode(values, typename From::Divider(scale));
        float* scales = params.scales + static_cast<int64_t>(place.col / kBlockCols) * params.scales_pitch;
        rows.for_each([&](uint32_t row) {
            if (place.inside && row < kept_rows) {
                *reinterpret_cast<uint2*>(params.codes + static_cast<int64_t>(row) * params.k + place.col) = codes;
                if (lane % kLanesPerBlock == 0) {
                    scales[row] = scale;
                }
            }
        });
    }
};

}  // namespace fp8gemm
