// Dense NT GEMM of scaled operands: D[M, N] = (A * scales_a)[M, K] (B * scales_b)[N, K]^T (+ C[M, N]) (+ bias[N]).
// A is scaled 1x128; B 128x128 (1D2D: weights) or 1x128 (1D1D: weight gradients).
//
// Persistent, warp-specialised, one CTA per SM. M is a run-time argument; everything else is in Config.
//
// Warp roles
//   warpgroup 0      warp 0          load   one thread fills the operand ring by TMA; the first steps it asks
//                                           for ahead of the roles; where L2 adds the output, it has that brought there
//                    warps 1, 2...   store  one thread each writes a consumer warpgroup's staged output by TMA; where
//                                           threads add C, the warp brings it into L2 before
//   warpgroups 1...                  multiply: WGMMA, promotion, addition of C and bias, conversion, staging
//
// Shared memory (SharedStorage)
//   operands.a, .b, .scales          kStages x K blocks: one, or one for each warpgroup
//   operands.ring                    kStages x {full, empty}
//   reduction                        with K shared by the warpgroups: half of a tile's sums; with K divided by the cluster:
//                                    what the other CTAs have of this one's columns, and the barrier that counts it
//   epilogue                         with TMA store: staging slots and their ring for each consumer warpgroup
//   groups                           of a grouped product: see grouped.cuh
//
// Barriers               arrives                                       count                       first wait, parity
//   operands.ring.full   load thread (expect_tx) + the bytes           1                           multiply, 0
//   operands.ring.empty  a lane of each consumer warp of the sharers   sharers x warps             load, 1 (0, if its first
//                                                                                                  steps fill the ring)
//                        (of half a tile of groups, the load thread for the second warpgroup's)
//   epilogue ring.full   a lane of each warp of the warpgroup          4                           store, 0
//   epilogue ring.empty  the store thread                              1                           multiply, 1
//   reduction.full       set up (expect_tx) + the bytes, K divided     1                           multiply, 0, once
//   kFirstShareGiven     both consumer warpgroups, K shared            256                         multiply, once a tile
//   kSecondShareGiven    both consumer warpgroups, K shared            256                         multiply, once a tile
//   the CTA's own        every thread, if it has its own operands      all threads                 all: when barriers are
//                                                                                                  initialised
//   the cluster's        every thread                                  all threads of the cluster  operands shared: all, as
//                                                                                                  above; K divided: multiply,
//                                                                                                  before sums go to others,
//                                                                                                  and store
//
// A CTA that shares operands ends when the load thread has found every stage empty: see OperandLoader::finish.
#pragma once

#include "fp8gemm/epilogue/addend_prefetch.cuh"
#include "fp8gemm/epilogue/addends.cuh"
#include "fp8gemm/epilogue/clipped_store.cuh"
#include "fp8gemm/epilogue/predicated_store.cuh"
#include "fp8gemm/epilogue/tma_store.cuh"
#include "fp8gemm/kernels/params.cuh"
#include "fp8gemm/mainloop/load.cuh"
#include "fp8gemm/mainloop/multiply.cuh"
#include "fp8gemm/mainloop/split_reduction.cuh"
#include "fp8gemm/mainloop/warpgroup_reduction.cuh"
#include "fp8gemm/ptx/cluster.cuh"
#include "fp8gemm/scheduler/persistent.cuh"
#include "fp8gemm/scheduler/split.cuh"
#include "fp8gemm/scheduler/walk.cuh"

namespace fp8gemm {

/// How the output is written. Groups end where others begin, which TMA may not write to.
template <class Config>
using EpiloguePolicy =
    Conditional<Config::kStore == StoreKind::kPredicated, PredicatedStore<Config>,
                Conditional<Config::kGrouping == Grouping::kNone, TmaStore<Config>, ClippedStore<Config>>>;

/// The groups of a single product: none, and nothing to know of them. grouped.cuh has the other such policy.
template <class Config>
struct SingleProduct {
    using Schedule = Conditional<Config::kSplitK == 1, PersistentSchedule<Config>, SplitSchedule<Config>>;

    struct SharedStorage {};

    /// Whether a CTA's tiles are known before `prepare`.
    static constexpr bool kTilesAreKnown = true;

    static FP8GEMM_DEVICE void prepare(const KernelParams&, SharedStorage&) {}

    static FP8GEMM_DEVICE Schedule schedule(const KernelParams& params, const SharedStorage&, uint32_t cluster,
                                            uint32_t num_clusters, uint32_t rank, uint32_t) {
        return Schedule(params.m, cluster, num_clusters, rank);
    }
};

template <class Config, class Groups = SingleProduct<Config>>
struct Dense {
    using Shape = TileShape<Config>;
    using Schedule = typename Groups::Schedule;
    using Reduction = Conditional<Config::kSplitK == 1, WarpgroupReduction<Config>, SplitReduction<Config>>;
    using Output = Summed<Config>;
    using Epilogue = EpiloguePolicy<Output>;

    static constexpr uint32_t kNumThreads = (1 + Shape::kWarpgroups) * kThreadsPerWarpgroup;
    /// Scales of B's rows take the consumers more registers, and a load warpgroup that looks up no groups needs fewer. Three
    /// warpgroups of consumers have less each.
    static constexpr bool kGivesMore = Config::kScaling == Scaling::kRow && Config::kGrouping == Grouping::kNone;
    static constexpr bool kAreThree = Shape::kWarpgroups == 3;
    static constexpr uint32_t kLoadRegisters = kAreThree ? 32 : kGivesMore ? 24 : 40;
    static constexpr uint32_t kMultiplyRegisters = kAreThree ? 160 : kGivesMore ? 240 : 232;

    /// One consumer warpgroup has registers enough from the launch.
    static constexpr bool kMovesRegisters = Shape::kWarpgroups > 1;
    /// Of a thread, from the launch: its share of the SM's.
    static constexpr uint32_t kLaunchRegisters = 65536 / kNumThreads / 8 * 8;

    static_assert(Shape::kWarpgroups <= 3, "the register split is for one load and at most three consumer warpgroups");
    static_assert(!kMovesRegisters || kLoadRegisters + Shape::kWarpgroups * kMultiplyRegisters <=
                                          (1 + Shape::kWarpgroups) * kLaunchRegisters,
                  "consumers would wait for registers that the launch has not");
    static_assert(Shape::kSharers <= 2, "operands are multicast to at most one other CTA");

    using Params = KernelParams;

    struct SharedStorage {
        OperandStages<Config> operands;
        [[no_unique_address]] typename Reduction::SharedStorage reduction;
        [[no_unique_address]] typename Epilogue::SharedStorage epilogue;
        [[no_unique_address]] typename Groups::SharedStorage groups;
    };
    static_assert(sizeof(SharedStorage) == Config::kSharedBytes, "the host computes another size of shared memory");

    static FP8GEMM_DEVICE void run(const Params& params) {
        extern __shared__ __align__(1024) uint8_t shared_bytes[];
        auto& shared = *reinterpret_cast<SharedStorage*>(shared_bytes);
        const uint32_t warp = ptx::warp_index();
        const uint32_t warpgroup = warp / kWarpsPerWarpgroup;
        const uint32_t rank = Shape::kClusterSize == 1 ? 0 : ptx::cluster_rank();
        const Schedule schedule = Groups::schedule(params, shared.groups, blockIdx.x / Shape::kClusterSize,
                                                   gridDim.x / Shape::kClusterSize, rank, warpgroup_served(warp));
        Walk<Schedule> walk(schedule);
        if (Groups::kTilesAreKnown && (warp == 0 || warpgroup != 0)) {
            // By those that have nothing to set up: a tile's place is a division, as long as making barriers (0.5 to 2.9 % of
            // products of 3 to 15 us, H100, 2026-11-25).
            walk.advance();
            ptx::compute_here(walk.tile.m);
            ptx::compute_here(walk.tile.n);
        }
        set_up(params, shared, warp);
        if (!Groups::kTilesAreKnown) {
            walk.advance();
        }
        if (warp == 0 && ptx::elect_one()) {
            OperandLoader<Config>::begin(params, shared.operands, rank, walk);
        }
        __syncwarp();  // setmaxnreg asks for whole warps; and being by all of them, it keeps the code above in this place
        if (warpgroup == 0) {
            if constexpr (kMovesRegisters) {
                ptx::decrease_registers<kLoadRegisters>();
            }
            if (warp == 0) {
                if (ptx::elect_one()) {
                    OperandLoader<Config> loader(params, shared.operands, rank);
                    loader.run(walk, OutputPrefetch<Output>(params));
                    // All operands of this CTA are on their way, so the next kernel's weights no longer hold them up.
                    ptx::launch_dependents();
                    loader.finish();
                }
            } else if (warp <= Epilogue::kStoreWarps) {
                if constexpr (Config::kSplitK > 1) {
                    // For nothing but compute-sanitizer, to which a wait is a meeting of all threads that have not ended.
                    ptx::cluster_wait();
                }
                Epilogue::drain(params, shared.epilogue, schedule, warp - 1);
            }
        } else {
            if constexpr (kMovesRegisters) {
                ptx::increase_registers<kMultiplyRegisters>();
            }
            multiply(params, shared, walk, warpgroup - 1, warp);
        }
    }

private:
    /// The consumer warpgroup that a warp is of, or whose output it stores; the first for the load warp. (Warps that have
    /// nothing to store may get one that there is not.)
    static FP8GEMM_DEVICE uint32_t warpgroup_served(uint32_t warp) {
        return warp >= kWarpsPerWarpgroup ? warp / kWarpsPerWarpgroup - 1 : warp > 0 ? warp - 1 : 0;
    }

    static FP8GEMM_DEVICE void set_up(const Params& params, SharedStorage& shared, uint32_t warp) {
        // Maps, the ring's barriers and the others' side by side: a thread initialises one after the other, in 6 cycles each
        // (H200, 2026-11-25).
        if (warp != 0 && warp < kWarpsPerWarpgroup && ptx::elect_one()) {
            if (warp == 1) {
                OperandCopies<Config>::prefetch_maps(params);
                Epilogue::prefetch_maps(params);
            } else if (warp == 2) {
                shared.operands.ring.initialize(1, Shape::kSharers * Shape::kWarpgroups * kWarpsPerWarpgroup);
            } else {
                shared.reduction.initialize();
                shared.epilogue.initialize();
            }
        }
        ptx::fence_mbarrier_init();
        if constexpr (Shape::kClusterSize > 1) {
            __syncwarp();
            ptx::cluster_arrive();
        }
        if constexpr (Shape::kSharers > 1) {
            ptx::cluster_wait();
        } else {
            __syncthreads();
        }
        ptx::wait_for_previous_grids();
        Groups::prepare(params, shared.groups);
    }

    static FP8GEMM_DEVICE void multiply(const Params& params, SharedStorage& shared, Walk<Schedule> walk,
                                        uint32_t warpgroup, uint32_t warp) {
        Multiplier<Config> multiplier(params, shared.operands, warpgroup, warp);
        const Addends<Output> addends(params, warpgroup, warp);
        typename Epilogue::Writer writer(params, shared.epilogue, warpgroup, warp);
        typename Shape::Accumulators accumulators;
        if (walk.more) {
            multiplier.begin(walk.tile);
        }
        while (walk.more) {
            multiplier.run(walk.tile, params.m, accumulators);
            const typename Schedule::Tile finished = walk.tile;
            walk.advance();
            if (walk.more) {
                multiplier.begin(walk.tile);
            }
            multiplier.mark_sum(finished);
            writer.write(finished, addends, Reduction::add(shared.reduction, warpgroup, accumulators));
        }
    }
};

}  // namespace fp8gemm
