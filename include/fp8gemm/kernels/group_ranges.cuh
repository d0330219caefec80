// From the group of each row to the rows of each group: where it begins and ends, in the table's terms.
//
// Warp roles
//   all      each thread has a row
//
// Shared memory, barriers: none
//
// A row that is not of the group of the row before it is its group's first, and likewise the last. Groups without rows
// are not written: the host has zeroed the ranges.
#pragma once

#include "fp8gemm/common/types.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

/// Filled in by the host: fp8gemm/driver/arguments.py knows these offsets.
struct GroupRangesParams {
    const int32_t* indices;  ///< (rows,)
    int32_t* begins;         ///< (groups,)
    int32_t* ends;
    uint32_t rows;
    uint32_t groups;
};
static_assert(sizeof(GroupRangesParams) == 32, "the host lays out this struct byte by byte");

template <class Config>
struct FindGroupRanges {
    using Params = GroupRangesParams;

    static constexpr uint32_t kNumThreads = Config::kThreads;

    static FP8GEMM_DEVICE void run(const Params& params) {
        ptx::launch_dependents();
        ptx::wait_for_previous_grids();
        const uint32_t row = blockIdx.x * kNumThreads + threadIdx.x;
        if (row >= params.rows) {
            return;
        }
        const auto group = static_cast<uint32_t>(params.indices[row]);  // -1 is no group either
        if (group >= params.groups) {
            return;
        }
        if (row == 0 || static_cast<uint32_t>(params.indices[row - 1]) != group) {
            params.begins[group] = static_cast<int32_t>(row);
        }
        if (row + 1 == params.rows || static_cast<uint32_t>(params.indices[row + 1]) != group) {
            params.ends[group] = static_cast<int32_t>(row + 1);
        }
    }
};

}  // namespace fp8gemm
