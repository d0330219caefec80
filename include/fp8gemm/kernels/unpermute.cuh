// For each token the weighted sum over its experts: products and sums are float32, each rounded, and added up in ascending
// k, whatever the number of tokens is; the result is rounded to the type of what is summed.
//
// Warp roles
//   all      each warp has a token and 256 columns: a lane has 8 of them, of every row of the token
//
// Shared memory, barriers: none
//
// A warp asks for kAhead rows before it adds any. Rows that were not kept are not read, and add nothing: zero times zero.
//
// NOTE: The kernel behind this one may start at once; it finds its weights while this one runs. The one ahead of this
// one is waited for before anything is read or written: what is summed comes from it.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/lanes.cuh"

namespace fp8gemm {

/// Filled in by the host: fp8gemm/driver/arguments.py knows these offsets.
struct UnpermuteParams {
    const void* y;        ///< rows of n elements, y_stride elements apart
    const void* weights;  ///< (tokens, top_k), of the type `weights_type`
    const int64_t* rows;  ///< (tokens, top_k)
    const uint8_t* kept;  ///< (tokens, top_k): whether there is a row
    void* out;            ///< (tokens, n), packed
    int64_t y_stride;
    uint32_t tokens;
    uint32_t top_k;
    uint32_t n;
    InputType weights_type;
};
static_assert(sizeof(UnpermuteParams) == 64, "the host lays out this struct byte by byte");

template <class Config>
struct Unpermute {
    using Params = UnpermuteParams;
    using Element = Lane<Config::kInput>;
    using Storage = typename Element::Storage;

    static constexpr uint32_t kNumThreads = Config::kWarps * 32;
    static constexpr uint32_t kColsOfWarp = 32 * kValuesPerLane;

    static FP8GEMM_DEVICE void run(const Params& params) {
        ptx::launch_dependents();
        const uint32_t warp = blockIdx.x * Config::kWarps + ptx::warp_index();
        const uint32_t warps_of_row = ceil_div(params.n, kColsOfWarp);
        const uint32_t token = warp / warps_of_row;
        const uint32_t col = warp % warps_of_row * kColsOfWarp + ptx::lane_index() * kValuesPerLane;
        ptx::wait_for_previous_grids();
        if (token >= params.tokens || col >= params.n) {
            return;
        }
        const Storage* y = static_cast<const Storage*>(params.y) + col;
        LaneValues sum = {};
        for (uint32_t first = 0; first < params.top_k; first += Config::kAhead) {
            uint32_t rows[Config::kAhead] = {};
            uint32_t weights[Config::kAhead] = {};
            bool kept[Config::kAhead] = {};
#pragma unroll
            for (uint32_t i = 0; i < Config::kAhead; ++i) {
                const int64_t place = static_cast<int64_t>(token) * params.top_k + first + i;
                if (first + i < params.top_k) {
                    rows[i] = static_cast<uint32_t>(params.rows[place]);
                    kept[i] = params.kept[place] != 0;
                    weights[i] = weight_bits(params, place);
                }
            }
            typename Element::Raw raw[Config::kAhead] = {};
#pragma unroll
            for (uint32_t i = 0; i < Config::kAhead; ++i) {
                if (kept[i]) {
                    raw[i] = Element::load(y + rows[i] * params.y_stride);
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < Config::kAhead; ++i) {
                add(sum, Element::unpack(raw[i]), kept[i] ? weight_of(params, weights[i]) : 0);
            }
        }
        Storage* out = static_cast<Storage*>(params.out) + static_cast<int64_t>(token) * params.n + col;
        Element::store(out, Element::pack(sum));
    }

private:
    /// A weight as it lies in memory, of 16 or 32 bits: as two halves, of which one of 16 bits has the first twice.
    /// NOTE: Without a branch that tells the types apart, so that all loads of a thread are in flight together.
    static FP8GEMM_DEVICE uint32_t weight_bits(const Params& params, int64_t place) {
        const uint32_t is_wide = params.weights_type == InputType::kFloat32 ? 1 : 0;
        const uint16_t* halves = static_cast<const uint16_t*>(params.weights) + (place << is_wide);
        return uint32_t{halves[is_wide]} << 16 | halves[0];
    }

    static FP8GEMM_DEVICE float weight_of(const Params& params, uint32_t bits) {
        if (params.weights_type == InputType::kFloat32) {
            return __uint_as_float(bits);
        }
        const auto half = static_cast<uint16_t>(bits);
        return params.weights_type == InputType::kBfloat16 ? ptx::unpack_bfloat16(half) : ptx::unpack_float16(half);
    }

    /// NOTE: Not a fused operation, so that the bits are those of the same sum in PyTorch.
    static FP8GEMM_DEVICE void add(LaneValues& sum, const LaneValues& values, float weight) {
#pragma unroll
        for (uint32_t i = 0; i < kValuesPerLane; ++i) {
            sum.value[i] = __fadd_rn(sum.value[i], __fmul_rn(values.value[i], weight));
        }
    }
};

}  // namespace fp8gemm
