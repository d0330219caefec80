// How the threads of a CTA fill the table of groups: each reads one group's range, and sums over those before it say where
// its entry comes and how many tiles come up to it.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/scheduler/group_table.cuh"

namespace fp8gemm {

/// The table, and what its filling needs.
template <class Config, uint32_t kThreads>
class GroupTableFiller {
    static constexpr uint32_t kWarps = kThreads / kThreadsPerWarp;

    /// Of groups: how many have tiles, and these.
    struct Sums {
        uint32_t entries;
        uint32_t tiles;
    };

public:
    struct SharedStorage {
        GroupTable<Config> table;
        Sums of_warps[kWarps];
    };

    /// By all threads, once what the kernels ahead wrote may be read; the table may be read when it returns.
    template <class Params>
    static FP8GEMM_DEVICE void fill(const Params& params, SharedStorage& shared) {
        const uint32_t limit = Config::kGrouping == Grouping::kColumns ? params.k : params.m;
        const GroupRanges ranges{params.group_begins, params.group_ends, limit};
        Sums before{0, 0};
#pragma unroll 1
        for (uint32_t first = 0; first < Config::kGroups; first += kThreads) {
            const uint32_t group = first + threadIdx.x;
            GroupEntry entry{group, 0, 0, 0};
            if (group < Config::kGroups) {
                entry = GroupTable<Config>::entry_of(ranges, params.m, group);
            }
            const bool has_tiles = entry.tiles_up_to != 0;
            const Sums sums = sum_up(shared, {has_tiles ? 1u : 0u, entry.tiles_up_to}, before);
            if (has_tiles) {
                entry.tiles_up_to = sums.tiles;
                shared.table.entries[sums.entries - 1] = entry;
            }
        }
        if (threadIdx.x == 0) {
            shared.table.count = before.entries;
            if constexpr (Config::kHalves) {
                shared.table.halves_from = GroupTable<Config>::first_of_halves(before.tiles, gridDim.x);
            }
        }
        __syncthreads();
    }

private:
    /// A thread's sums up to its own group, given those of its group alone; `before` are those of the groups before all
    /// threads', and then with these.
    static FP8GEMM_DEVICE Sums sum_up(SharedStorage& shared, Sums sums, Sums& before) {
        const uint32_t lane = ptx::lane_index();
        const uint32_t warp = ptx::warp_index();
#pragma unroll
        for (uint32_t distance = 1; distance < kThreadsPerWarp; distance *= 2) {
            const uint32_t entries = __shfl_up_sync(0xffffffffu, sums.entries, distance);
            const uint32_t tiles = __shfl_up_sync(0xffffffffu, sums.tiles, distance);
            sums.entries += lane >= distance ? entries : 0;
            sums.tiles += lane >= distance ? tiles : 0;
        }
        __syncthreads();  // what warps left here the last time has been read
        if (lane == kThreadsPerWarp - 1) {
            shared.of_warps[warp] = sums;
        }
        __syncthreads();
        sums.entries += before.entries;
        sums.tiles += before.tiles;
#pragma unroll
        for (uint32_t other = 0; other < kWarps; ++other) {
            const Sums of_warp = shared.of_warps[other];
            sums.entries += other < warp ? of_warp.entries : 0;
            sums.tiles += other < warp ? of_warp.tiles : 0;
            before.entries += of_warp.entries;
            before.tiles += of_warp.tiles;
        }
        return sums;
    }
};

}  // namespace fp8gemm
