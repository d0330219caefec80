// RMS norm, with or without an addition before it, to FP8: x (+ residual) / sqrt(mean of squares + eps) * weight, one
// scale per row and 128 columns, written MN-major.
//
// Warp roles
//   all      a CTA has one row, a thread 8 columns in every kThreads * 8: half a warp has a K block at a time
//
// Shared memory (static)
//   squares   a float per warp: its part of the row's sum of squares
//
// Barriers
//   the CTA's own   every thread, once, between writing and reading that
//
// NOTE: Parts of the sum are added in an order that K and kThreads alone decide, so that a row's bits do not depend on
// the other rows.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/encode.cuh"
#include "fp8gemm/quantize/params.cuh"

namespace fp8gemm {

template <class Config>
struct QuantizeNorm {
    using Params = QuantizeParams;
    using Input = Lane<Config::kInput>;
    using Weight = Lane<Config::kWeight>;
    using Storage = typename Input::Storage;

    static constexpr uint32_t kNumThreads = Config::kThreads;
    static constexpr uint32_t kWarps = kNumThreads / 32;
    static constexpr uint32_t kPieces = ceil_div(Config::kK, kNumThreads* kValuesPerLane);

    static FP8GEMM_DEVICE void run(const Params& params) {
        __shared__ float squares[kWarps];
        ptx::launch_dependents();
        ptx::wait_for_previous_grids();
        typename Weight::Raw weights[kPieces] = {};
        typename Input::Raw raw[kPieces] = {};
        load(params, raw, weights);
        const float mean = sum_of_squares(raw, squares) / static_cast<float>(Config::kK);
        const float inverse = ptx::inverse_square_root(mean + params.eps);
#pragma unroll
        for (uint32_t i = 0; i < kPieces; ++i) {
            store(params, column_of(i), normed(Input::unpack(raw[i]), inverse, Weight::unpack(weights[i])));
        }
    }

private:
    static FP8GEMM_DEVICE uint32_t column_of(uint32_t piece) {
        return (piece * kNumThreads + threadIdx.x) * kValuesPerLane;
    }

    /// What is normed, the input or, rounded and written, its sum with the residual; and the weight. Everything is asked
    /// for before the first value is needed.
    static FP8GEMM_DEVICE void load(const Params& params, typename Input::Raw (&raw)[kPieces],
                                    typename Weight::Raw (&weights)[kPieces]) {
        const uint32_t row = blockIdx.x;
        const auto* x = static_cast<const Storage*>(params.x) + row * params.x_stride;
        const auto* residual = static_cast<const Storage*>(params.residual) + row * params.residual_stride;
        auto* summed = static_cast<Storage*>(params.summed) + static_cast<int64_t>(row) * Config::kK;
        typename Input::Raw added[kPieces] = {};
#pragma unroll
        for (uint32_t i = 0; i < kPieces; ++i) {
            const uint32_t col = column_of(i);
            if (col < Config::kK) {
                raw[i] = Input::load(x + col);
                if constexpr (Config::kResidual) {
                    added[i] = Input::load(residual + col);
                }
                weights[i] = Weight::load(static_cast<const typename Weight::Storage*>(params.weight) + col);
            }
        }
        if constexpr (Config::kResidual) {
#pragma unroll
            for (uint32_t i = 0; i < kPieces; ++i) {
                raw[i] = Input::pack(sum(Input::unpack(raw[i]), Input::unpack(added[i])));
                if (column_of(i) < Config::kK) {
                    Input::store(summed + column_of(i), raw[i]);
                }
            }
        }
    }

    static FP8GEMM_DEVICE float sum_of_squares(const typename Input::Raw (&raw)[kPieces], float (&of_warps)[kWarps]) {
        float squares = 0;
#pragma unroll
        for (const auto& piece : raw) {
            for (float value : Input::unpack(piece).value) {
                squares = fmaf(value, value, squares);
            }
        }
#pragma unroll
        for (uint32_t mask = 16; mask > 0; mask /= 2) {
            squares += ptx::exchange(squares, mask);
        }
        of_warps[threadIdx.x / 32] = squares;
        __syncthreads();
        squares = 0;
        for (float of_warp : of_warps) {
            squares += of_warp;
        }
        return squares;
    }

    static FP8GEMM_DEVICE LaneValues sum(LaneValues values, const LaneValues& added) {
#pragma unroll
        for (uint32_t i = 0; i < kValuesPerLane; ++i) {
            values.value[i] += added.value[i];
        }
        return values;
    }

    static FP8GEMM_DEVICE LaneValues normed(LaneValues values, float inverse, const LaneValues& weight) {
#pragma unroll
        for (uint32_t i = 0; i < kValuesPerLane; ++i) {
            values.value[i] = values.value[i] * inverse * weight.value[i];
        }
        return values;
    }

    static FP8GEMM_DEVICE void store(const Params& params, uint32_t col, const LaneValues& values) {
        const uint32_t row = blockIdx.x;
        const bool inside = col < Config::kK;
        const float scale = scale_of(largest_of_lanes<kLanesPerBlock>(inside ? largest(values) : 0.0f));
        if (inside) {
            *reinterpret_cast<uint2*>(params.codes + static_cast<int64_t>(row) * Config::kK + col) =
                encode(values, ApproximateDivider(scale));
            if (threadIdx.x % kLanesPerBlock == 0) {
                params.scales[static_cast<int64_t>(col / kBlockCols) * params.scales_pitch + row] = scale;
            }
        }
    }
};

}  // namespace fp8gemm
