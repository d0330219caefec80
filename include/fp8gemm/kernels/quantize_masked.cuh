// Activations of groups to FP8: of each group only as many rows as its count in device memory says. What is written of a
// row is, to the bit, what quantize_rows.cuh writes.
//
// Warp roles
//   all      each warp has some rows of a group and two K blocks after others, in strides of the grid
//
// Shared memory, barriers: none
//
// The host, which does not know the counts, launches as many CTAs as find room at once, and each warp adds the counts up:
// rows are dealt out evenly, whatever group they are of, and a group without rows costs no warp anything. Where there is
// a warp for each row, it has one; where there are more rows, kRows, so that more loads are in flight.
//
// NOTE: The kernel behind this one may start at once; it finds its weights while this one runs. The one ahead of this
// one is waited for before anything is read or written: the counts come from it, and the input.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/quantize/group_units.cuh"
#include "fp8gemm/quantize/rows_of_warp.cuh"

namespace fp8gemm {

template <class Config>
struct QuantizeMasked {
    using Params = QuantizeParams;

    static constexpr uint32_t kNumThreads = Config::kWarps * 32;

    static FP8GEMM_DEVICE void run(const Params& params) {
        ptx::launch_dependents();
        const uint32_t lane = ptx::lane_index();
        const uint32_t warps_of_row = ceil_div(params.k, kColsOfWarp);
        ptx::wait_for_previous_grids();
        const GroupUnits<1> single(params, warps_of_row, lane);
        if (single.total() <= gridDim.x * Config::kWarps) {
            quantize(params, single, warps_of_row, lane);
        } else {
            quantize(params, GroupUnits<Config::kRows>(params, warps_of_row, lane), warps_of_row, lane);
        }
    }

private:
    template <uint32_t kRows>
    static FP8GEMM_DEVICE void quantize(const Params& params, const GroupUnits<kRows>& units, uint32_t warps_of_row,
                                        uint32_t lane) {
        const uint32_t first = blockIdx.x * Config::kWarps + ptx::warp_index();
        for (uint32_t unit = first; unit < units.total(); unit += gridDim.x * Config::kWarps) {
            const UnitPlace place = units.find(unit);
            const uint32_t first_row = place.unit_of_group / warps_of_row * kRows;
            const uint32_t col = place.unit_of_group % warps_of_row * kColsOfWarp + lane * kValuesPerLane;
            const uint32_t rows = minimum(place.rows_of_group - first_row, kRows);
            RowsOfWarp<Config, kRows>::quantize(of_group(params, place.group), first_row, rows, col, lane);
        }
    }

    /// A group's part, as if it were all.
    static FP8GEMM_DEVICE Params of_group(const Params& params, uint32_t group) {
        using Storage = typename Source<Config>::Storage;
        const uint32_t k_blocks = ceil_div(params.k, kBlockCols);
        Params part = params;
        part.x = static_cast<const Storage*>(params.x) + group * params.x_group_stride;
        part.codes = params.codes + static_cast<int64_t>(group) * params.rows * params.k;
        part.scales = params.scales + static_cast<int64_t>(group) * k_blocks * params.scales_pitch;
        return part;
    }
};

}  // namespace fp8gemm
