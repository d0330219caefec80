// Weights to FP8: one scale per 128x128 block. Bits are the reference's.
//
// Warp roles
//   all      half a warp has a row of the block at a time, and kRowsOfHalf of them: a lane has 8 columns of each
//
// Shared memory (static)
//   largest   kWarps floats: each warp's part of the block's largest absolute value
//
// Barriers
//   the CTA's own   every thread, once, between writing and reading that
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/encode.cuh"
#include "fp8gemm/quantize/params.cuh"

namespace fp8gemm {

template <class Config>
struct QuantizeBlocks {
    using Params = QuantizeParams;
    using Input = Lane<Config::kInput>;

    static constexpr uint32_t kWarps = Config::kWarps;
    static constexpr uint32_t kNumThreads = kWarps * 32;
    static constexpr uint32_t kHalves = 2 * kWarps;
    static constexpr uint32_t kBlockRows = 128;
    static constexpr uint32_t kRowsOfHalf = kBlockRows / kHalves;

    static FP8GEMM_DEVICE void run(const Params& params) {
        __shared__ float largest_of_warp[kWarps];
        ptx::launch_dependents();
        const uint32_t blocks_of_row = ceil_div(params.k, kBlockCols);
        const uint32_t half = threadIdx.x / kLanesPerBlock;
        const uint32_t first_row = blockIdx.x / blocks_of_row * kBlockRows + half;
        const uint32_t col = blockIdx.x % blocks_of_row * kBlockCols + threadIdx.x % kLanesPerBlock * kValuesPerLane;

        ptx::wait_for_previous_grids();
        typename Input::Raw raw[kRowsOfHalf] = {};
#pragma unroll
        for (uint32_t i = 0; i < kRowsOfHalf; ++i) {
            const uint32_t row = first_row + i * kHalves;
            if (col < params.k && row < params.rows) {
                raw[i] =
                    Input::load(static_cast<const typename Input::Storage*>(params.x) + row * params.x_stride + col);
            }
        }
        float amax = 0;
#pragma unroll
        for (auto& of_row : raw) {
            amax = ptx::max_or_nan(amax, largest(Input::unpack(of_row)));
            Input::forget(of_row);
        }
        largest_of_warp[threadIdx.x / 32] = largest_of_lanes<32>(amax);
        __syncthreads();
        for (float other : largest_of_warp) {
            amax = ptx::max_or_nan(amax, other);
        }
        const float scale = scale_of(amax);
#pragma unroll
        for (uint32_t i = 0; i < kRowsOfHalf; ++i) {
            const uint32_t row = first_row + i * kHalves;
            if (col < params.k && row < params.rows) {
                uint8_t* destination = params.codes + static_cast<int64_t>(row) * params.k + col;
                *reinterpret_cast<uint2*>(destination) = encode(Input::unpack(raw[i]), ExactDivider(scale));
            }
        }
        if (threadIdx.x == 0) {
            params.scales[blockIdx.x] = scale;
        }
    }
};

}  // namespace fp8gemm
