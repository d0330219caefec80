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
#include "fp8gemm/quantize/rows_of_warp.cuh"

namespace fp8gemm {

template <class Config>
struct QuantizeRows {
    using Params = QuantizeParams;
    using Rows = RowsOfWarp<Config, Config::kRows>;

    static constexpr uint32_t kNumThreads = Config::kWarps * 32;

    static FP8GEMM_DEVICE void run(const Params& params) {
        ptx::launch_dependents();
        const uint32_t lane = ptx::lane_index();
        const uint32_t warp = blockIdx.x * Config::kWarps + ptx::warp_index();
        const uint32_t warps_of_row = ceil_div(params.k, kColsOfWarp);
        const uint32_t first_row = warp / warps_of_row * Config::kRows;
        const uint32_t col = warp % warps_of_row * kColsOfWarp + lane * kValuesPerLane;
        ptx::wait_for_previous_grids();
        if (first_row >= params.rows) {
            return;
        }
        Rows::quantize(params, first_row, minimum(params.rows - first_row, Config::kRows), col, lane);
    }
};

}  // namespace fp8gemm
