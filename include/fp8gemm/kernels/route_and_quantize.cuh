// What route_tokens.cuh and quantize_to_rows.cuh do, in one launch, where tokens are few: a second launch, and its wait for
// the first, would take longer than all warps take to find the rows of their tokens for themselves.
//
// Warp roles
//   the first CTA   all warps route, as route_tokens.cuh does with one chunk: offsets, rows and what is kept
//   other CTAs      each warp has a token and two K blocks, as in quantize_to_rows.cuh; it counts which rows are its token's
//
// Shared memory, barriers: those of route_tokens.cuh, in the first CTA
//
// The row of index i is how many indices have a lesser group, or the same one and come earlier: what a stable sort gives.
//
// NOTE: The kernel behind this one may start at once; it finds its weights while this one runs. The one ahead of this
// one is waited for before anything is read or written: ids come from it, and the input.
#pragma once

#include "fp8gemm/kernels/quantize_to_rows.cuh"
#include "fp8gemm/kernels/route_tokens.cuh"

namespace fp8gemm {

/// Filled in by the host: fp8gemm/driver/arguments.py knows these offsets.
struct RouteAndQuantizeParams {
    QuantizeParams quantize;  ///< without rows_of_tokens and kept_rows, which nobody has written yet
    RouteParams route;        ///< of one chunk
};
static_assert(sizeof(RouteAndQuantizeParams) == 208, "the host lays out this struct byte by byte");

/// The rows of a token, counted by a whole warp.
template <class Config>
class CountedRows {
public:
    /// Asks for all ids, and for those of the token.
    FP8GEMM_DEVICE CountedRows(const RouteParams& params, uint32_t token, uint32_t top_k, uint32_t lane)
        : params_(params), lane_(lane), first_(token * top_k), top_k_(top_k) {
        uint32_t high[kSteps], high_of_own;
#pragma unroll
        for (uint32_t step = 0; step < kSteps; ++step) {
            const uint32_t index = step * kLanes + lane;
            load_id(params, index, index < params.count, group_[step], high[step]);
        }
        load_id(params, first_ + lane, lane < top_k, own_, high_of_own);
#pragma unroll
        for (uint32_t step = 0; step < kSteps; ++step) {
            const bool is_there = step * kLanes + lane < params.count;
            group_[step] = is_there ? group_of(params, group_[step], high[step]) : kNoIndex;
        }
        own_ = group_of(params, own_, high_of_own);
    }

    /// Calls `visit(row)` for each row of a group, in the order of the token's experts.
    template <class Visit>
    FP8GEMM_DEVICE void for_each(const Visit& visit) {
        for (uint32_t k = 0; k < top_k_; ++k) {
            const uint32_t group = __shfl_sync(kAllLanes, own_, k);
            uint32_t row = 0;
#pragma unroll
            for (uint32_t step = 0; step < kSteps; ++step) {
                if (step * kLanes < params_.count) {  // of one token all others are empty
                    const bool is_earlier = step * kLanes + lane_ < first_ + k;
                    const bool is_before = group_[step] < group || (group_[step] == group && is_earlier);
                    row += __popc(__ballot_sync(kAllLanes, is_before));
                }
            }
            if (group < params_.groups) {
                visit(row);
            }
        }
    }

private:
    static constexpr uint32_t kLanes = 32, kAllLanes = 0xffffffffu, kNoIndex = 0xffffffffu;
    static constexpr uint32_t kSteps = Config::kThreads * Config::kItems / kLanes;  ///< of all indices of a chunk

    const RouteParams& params_;
    uint32_t lane_;
    uint32_t first_;          ///< index of the token
    uint32_t top_k_;          ///< at most kLanes
    uint32_t group_[kSteps];  ///< of the indices that this lane has
    uint32_t own_;            ///< that of the token's lane-th expert
};

template <class Config>
struct RouteAndQuantize {
    using Params = RouteAndQuantizeParams;
    using Chunk = ChunkOfRoutes<Config>;
    using Quantizer = QuantizeToRows<Config>;

    static constexpr uint32_t kNumThreads = Config::kThreads;
    static_assert(Config::kWarps * 32 == Config::kThreads, "one CTA's warps have either role");

    static FP8GEMM_DEVICE void run(const Params& params) {
        __shared__ typename Chunk::SharedStorage shared;
        ptx::launch_dependents();
        if (blockIdx.x == 0) {
            Chunk chunk(params.route, shared);
            ptx::wait_for_previous_grids();
            chunk.count();
            chunk.find_begins();
            chunk.store();
            return;
        }
        const uint32_t lane = ptx::lane_index();
        const typename Quantizer::Place place(params.quantize, blockIdx.x - 1, lane);
        ptx::wait_for_previous_grids();
        if (place.token < params.quantize.rows) {
            const auto raw = Quantizer::load(params.quantize, place);
            CountedRows<Config> rows(params.route, place.token, params.quantize.top_k, lane);
            Quantizer::write(params.quantize, place, raw, lane, rows);
        }
    }
};

}  // namespace fp8gemm
