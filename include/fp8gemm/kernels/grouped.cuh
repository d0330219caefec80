// Grouped NT GEMM of scaled operands, on the parts of dense.cuh: each group of rows of A (contiguous or masked) with a B
// of its own, D[m, N] = (A * scales_a)[m, K] (B[g] * scales_b[g])[N, K]^T; or each group of columns of A and B with an
// output of its own, D[g] = (A * scales_a)[M, K_g] (B * scales_b)[N, K_g]^T (+ C[g]).
//
// Warp roles, shared memory and barriers are those of dense.cuh, and
//   groups.table   shared memory: the range of each group that has tiles, and how many tiles come up to its last. All
//                  threads fill it when the kernels ahead have ended, before the roles begin; then it is only read.
//   store          by whole warps, since they copy rows where TMA would write those of another group
//   the CTA's own barrier, by every thread: twice for each turn that it takes to fill the table, and when it is full
//
// The time is that of one dense product of all groups' tiles: what groups cost is the last tile of each, of which rows
// may be missing, and about a microsecond for the table.
#pragma once

#include "fp8gemm/kernels/dense.cuh"
#include "fp8gemm/mainloop/fill_table.cuh"
#include "fp8gemm/scheduler/grouped.cuh"

namespace fp8gemm {

template <class Config>
struct Groups {
    using Schedule = GroupedSchedule<Config>;
    static constexpr bool kTilesAreKnown = false;
    static constexpr uint32_t kThreads = (1 + TileShape<Config>::kWarpgroups) * kThreadsPerWarpgroup;
    using Filler = GroupTableFiller<Config, kThreads>;
    using SharedStorage = typename Filler::SharedStorage;

    /// By all threads of the CTA.
    static FP8GEMM_DEVICE void prepare(const KernelParams& params, SharedStorage& shared) {
        Filler::fill(params, shared);
    }

    static FP8GEMM_DEVICE Schedule schedule(const KernelParams& params, const SharedStorage& shared, uint32_t cluster,
                                            uint32_t num_clusters, uint32_t rank, uint32_t warpgroup) {
        return Schedule(shared.table, params.m, cluster, num_clusters, rank, warpgroup);
    }
};

template <class Config>
struct Grouped : Dense<Config, Groups<Config>> {
    static_assert(!Config::kHalves || (Config::kGrouping != Grouping::kColumns && Config::kWarpgroupsM == 2 &&
                                       TileShape<Config>::kWarpgroups == 2 && TileShape<Config>::kClusterSize == 1 &&
                                       Config::kPieceOfA == Config::kBlockM / 2),
                  "half a tile is the rows of one of two warpgroups, of a CTA of its own");
    static_assert(Config::kSplitK == 1, "a cluster that divides K has one tile, and groups have many");
    static_assert(Config::kWarpgroupsK == 1 || Config::kGrouping == Grouping::kContiguous ||
                      (Config::kGrouping == Grouping::kMasked &&
                       TileShape<Config>::kNumKBlocks % Config::kWarpgroupsK == 0),
                  "where K is shared, a K block past its end would be another group's instead of zeros");
};

}  // namespace fp8gemm
