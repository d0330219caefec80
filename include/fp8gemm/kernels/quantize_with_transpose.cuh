// A matrix and its transpose to FP8, read once: one scale per row and 128 columns of each, written MN-major, which the
// GEMM reads in place. Bits are the reference's. Rows of the transpose end with zeros, at a whole block.
//
// Warp roles
//   all      a CTA has a 128x128 block: half a warp has 8 neighbouring rows of it, a lane 8 columns of each, an 8x8 square
//
// Shared memory (static)
//   largest     for each warp and column the largest absolute value of the warp's rows; of a lane's eight columns the
//               first four lie apart from the others, beside those of other lanes
//   transpose   the block's codes by columns, 128 bytes of each, in chunks of 8 that a lane has made
//
// Barriers
//   the CTA's own   every thread, between writing and reading of each of them
//
// NOTE: Sixteen lanes write a chunk each of columns that are 8 apart, and later eight read 128 bytes of one: chunk i of a
// column lies at place i ^ (column / 8), so that neither has a bank twice.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/encode.cuh"
#include "fp8gemm/quantize/params.cuh"
#include "fp8gemm/quantize/store_scales.cuh"

namespace fp8gemm {

template <class Config>
struct QuantizeWithTranspose {
    using Params = QuantizeParams;
    using Input = Lane<Config::kInput>;
    using Floats = Lane<InputType::kFloat32>;

    static constexpr uint32_t kBlockRows = 128;
    static constexpr uint32_t kRowsOfHalf = kValuesPerLane;  ///< so that a lane has eight codes of a column, too
    static constexpr uint32_t kWarps = kBlockRows / (2 * kRowsOfHalf);
    static constexpr uint32_t kNumThreads = kWarps * 32;
    static constexpr uint32_t kChunks = kBlockRows / kValuesPerLane;      ///< of a column
    static constexpr uint32_t kColsOfPass = kNumThreads / (kChunks / 2);  ///< that the CTA stores at once

    using Raw = typename Input::Raw[kRowsOfHalf];
    using Largest = float4[kWarps][2][kLanesPerBlock];
    using Transpose = uint2[kBlockCols][kChunks];

    static FP8GEMM_DEVICE void run(const Params& params) {
        __shared__ __align__(16) Largest largest_of_cols;
        __shared__ __align__(16) Transpose transpose;
        ptx::launch_dependents();
        const uint32_t blocks_of_row = ceil_div(params.k, kBlockCols);
        const uint32_t block_row = blockIdx.x / blocks_of_row;
        const uint32_t lane = threadIdx.x % kLanesPerBlock;
        const uint32_t half = threadIdx.x / kLanesPerBlock;
        const uint32_t first_col = blockIdx.x % blocks_of_row * kBlockCols;
        const uint32_t first_row = block_row * kBlockRows + half * kRowsOfHalf;
        const uint32_t col = first_col + lane * kValuesPerLane;
        const uint32_t rows =
            col < params.k && first_row < params.rows ? minimum(params.rows - first_row, kRowsOfHalf) : 0;

        ptx::wait_for_previous_grids();
        Raw raw = {};
#pragma unroll
        for (uint32_t i = 0; i < kRowsOfHalf; ++i) {
            if (i < rows) {
                raw[i] = Input::load(static_cast<const typename Input::Storage*>(params.x) +
                                     (first_row + i) * params.x_stride + col);
            }
        }
        quantize_rows(params, raw, rows, first_row, col, lane, largest_of_cols);
        __syncthreads();
        quantize_cols(params, raw, block_row, col, lane, half, largest_of_cols, transpose);
        __syncthreads();
        store_transpose(params, block_row * kBlockRows, first_col, transpose);
    }

private:
    /// Codes and scales of this lane's rows, and what each of its columns has that is largest in the rows of its warp.
    static FP8GEMM_DEVICE void quantize_rows(const Params& params, Raw& raw, uint32_t rows, uint32_t first_row,
                                             uint32_t col, uint32_t lane, Largest& largest_of_cols) {
        LaneValues largest_of_lane = {};
        float scales[kRowsOfHalf];
#pragma unroll
        for (uint32_t i = 0; i < kRowsOfHalf; ++i) {
            const LaneValues values = Input::unpack(raw[i]);
            scales[i] = scale_of(largest_of_lanes<kLanesPerBlock>(largest(values)));
            if (i < rows) {
                uint8_t* destination = params.codes + static_cast<int64_t>(first_row + i) * params.k + col;
                *reinterpret_cast<uint2*>(destination) = encode(values, ExactDivider(scales[i]));
            }
#pragma unroll
            for (uint32_t c = 0; c < kValuesPerLane; ++c) {
                float& most = largest_of_lane.value[c];
                most = ptx::max_or_nan(most, fabsf(values.value[c]));
            }
            Input::forget(raw[i]);
        }
        if (rows != 0 && lane == 0) {
            store_scales(params.scales + static_cast<int64_t>(col / kBlockCols) * params.scales_pitch + first_row,
                         scales, rows);
        }
        const bool is_upper = threadIdx.x % 32 < kLanesPerBlock;
#pragma unroll
        for (uint32_t c = 0; c < kValuesPerLane; ++c) {
            float& most = largest_of_lane.value[c];
            most = ptx::max_or_nan(most, ptx::exchange(most, kLanesPerBlock));
        }
        if (is_upper) {
            const auto [first, second] = Floats::pack(largest_of_lane);
            largest_of_cols[threadIdx.x / 32][0][lane] = first;
            largest_of_cols[threadIdx.x / 32][1][lane] = second;
        }
    }

    /// Codes of this lane's columns, into shared memory, and their scales.
    static FP8GEMM_DEVICE void quantize_cols(const Params& params, const Raw& raw, uint32_t block_row, uint32_t col,
                                             uint32_t lane, uint32_t half, const Largest& largest_of_cols,
                                             Transpose& transpose) {
        LaneValues amax = {};
#pragma unroll
        for (const auto& of_warp : largest_of_cols) {
            const LaneValues others = Floats::unpack({of_warp[0][lane], of_warp[1][lane]});
#pragma unroll
            for (uint32_t c = 0; c < kValuesPerLane; ++c) {
                amax.value[c] = ptx::max_or_nan(amax.value[c], others.value[c]);
            }
        }
        LaneValues scales;
#pragma unroll
        for (uint32_t c = 0; c < kValuesPerLane; ++c) {
            scales.value[c] = scale_of(amax.value[c]);
            LaneValues column;
#pragma unroll
            for (uint32_t i = 0; i < kRowsOfHalf; ++i) {
                column.value[i] = Input::unpack(raw[i]).value[c];
            }
            transpose[lane * kValuesPerLane + c][half ^ lane] = encode(column, ExactDivider(scales.value[c]));
        }
        if (half == 0 && col < params.k) {
            const int64_t of_block = static_cast<int64_t>(block_row) * params.transposed_pitch;
            Floats::store(params.transposed_scales + of_block + col, Floats::pack(scales));
        }
    }

    /// A row of the transpose has as many columns as x has rows, rounded up to whole blocks.
    static FP8GEMM_DEVICE void store_transpose(const Params& params, uint32_t first_row, uint32_t first_col,
                                               const Transpose& transpose) {
        const uint32_t width = ceil_div(params.rows, kBlockRows) * kBlockRows;
        const uint32_t pair = threadIdx.x % (kChunks / 2);
        const uint32_t row = first_row + pair * 2 * kValuesPerLane;
#pragma unroll
        for (uint32_t pass = 0; pass < kBlockCols / kColsOfPass; ++pass) {
            const uint32_t c = pass * kColsOfPass + threadIdx.x / (kChunks / 2);
            const uint32_t swizzle = c / kValuesPerLane;
            const uint4 chunks = *reinterpret_cast<const uint4*>(&transpose[c][(2 * pair ^ swizzle) & ~1u]);
            if (first_col + c < params.k) {
                uint8_t* destination = params.transposed + static_cast<int64_t>(first_col + c) * width + row;
                *reinterpret_cast<uint4*>(destination) =
                    swizzle % 2 == 0 ? chunks : uint4{chunks.z, chunks.w, chunks.x, chunks.y};
            }
        }
    }
};

}  // namespace fp8gemm
