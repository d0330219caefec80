// Dense NT GEMM for few rows: D[M, N] = (A * scales_a)[M, K] (B * scales_b)[N, K]^T (+ C[M, N]) (+ bias[N]), where the
// time is that of streaming the weight B once. A is scaled 1x128, B 128x128.
//
// The operands are swapped: B is on the 64-row side of WGMMA (see swap_ab_shape.cuh). Each cluster computes one tile, its
// CTAs dividing K; several CTAs share an SM. M is a run-time argument; everything else is in Config.
//
// Warp roles
//   warpgroups 0...      multiply: products of scales, WGMMA, promotion; then sum of the shares, addition of C and bias, output
//   the last warp        load: one thread initialises the barriers and fills the operand ring by TMA
//
// Shared memory (SharedStorage)
//   stages.weights, .tokens   kStages x K blocks: one for each slice of each warpgroup
//   stages.ring               kStages x {full, empty}
//   products                  of the scales, for each K block and token
//   reduction                 of the columns that this CTA writes: the sums of every share of K; in a cluster their barrier
//
// Barriers                arrives                                count                       first wait, parity
//   stages.ring.full      load thread (expect_tx) + the bytes    1                           multiply, 0
//   stages.ring.empty     a lane of each consumer warp           warps                       load, 0 when a stage comes again
//   reduction.full        load thread (expect_tx) + the bytes    1                           multiply, 0, in a cluster
//   kBarriersInitialized  the load warp; consumers wait too      all threads                 multiply, once
//   kProductsWritten      consumers                              all consumers               multiply, once
//   kSharesStored         consumers, if there is no cluster      all consumers               multiply, once
//   cluster barrier       every thread of the cluster            all threads                 multiply, once, in a cluster:
//                                                                ahead of the first write to another CTA
//
// With programmatic dependent launch this kernel starts before the one ahead of it has ended. Each thread that reads what
// that one may have written, or writes anything at all, waits for it first.
#pragma once

#include "fp8gemm/epilogue/cluster_reduction.cuh"
#include "fp8gemm/epilogue/piece_store.cuh"
#include "fp8gemm/kernels/params.cuh"
#include "fp8gemm/mainloop/swap_ab_load.cuh"
#include "fp8gemm/mainloop/swap_ab_multiply.cuh"
#include "fp8gemm/ptx/cluster.cuh"

namespace fp8gemm {

template <class Config>
struct SwapAb {
    using Shape = SwapAbShape<Config>;
    using Reduction = ClusterReduction<Config>;
    using Params = KernelParams;

    static constexpr uint32_t kNumThreads = Shape::kThreads;

    struct SharedStorage {
        SwapAbStages<Config> stages;
        alignas(16) typename ScaleProducts<Config>::OfBlock products[Shape::kBlocksOfCta];
        typename Reduction::SharedStorage reduction;
    };
    static_assert(sizeof(SharedStorage) == Config::kSharedBytes, "the host computes another size of shared memory");

    static FP8GEMM_DEVICE void run(const Params& params) {
        extern __shared__ __align__(1024) uint8_t shared_bytes[];
        auto& shared = *reinterpret_cast<SharedStorage*>(shared_bytes);
        const uint32_t warp = ptx::warp_index();
        const SplitTile split = split_tile<Config>(blockIdx.x, params.m);
        const uint32_t tokens = minimum(params.m - split.tile.m * Shape::kTokens, Shape::kTokens);
        if (warp == Shape::kLoadWarp) {
            load(params, shared, split, tokens);
        } else {
            multiply(params, shared, split, tokens, warp);
        }
    }

private:
    static FP8GEMM_DEVICE void load(const Params& params, SharedStorage& shared, SplitTile split, uint32_t tokens) {
        const bool elected = ptx::elect_one();
        if (elected) {
            shared.stages.ring.initialize(1, Shape::kLoadWarp);
            Reduction::initialize(shared.reduction);
            ptx::fence_mbarrier_init();
        }
        __syncwarp();
        // NOTE: Arrives without waiting, because the loads that follow should not wait for the consumers' start.
        ptx::named_barrier_arrive(kBarriersInitialized, Shape::kThreads);
        arrive_at_cluster();
        if (elected) {
            SwapAbLoader<Config>(params, shared.stages, split).run();
            Reduction::expect(shared.reduction, split, tokens);  // keeps no load waiting
        }
    }

    static FP8GEMM_DEVICE void multiply(const Params& params, SharedStorage& shared, SplitTile split, uint32_t tokens,
                                        uint32_t warp) {
        ScaleProducts<Config> scales(
            {params.scales_a + split.tile.m * Shape::kTokens * params.scales_a_stride_m, params.scales_a_stride_m,
             params.scales_a_stride_k, params.scales_b + Shape::row_of_scales_b(split.tile.n) * Shape::kNumKBlocks},
            split.rank * Shape::kBlocksOfCta, tokens);
        if (warp == 0 && ptx::elect_one()) {
            SwapAbCopies<Config>::prefetch_maps(params);
        }
        if (params.static_weights == 0) {
            ptx::wait_for_previous_grids();
        }
        scales.begin();
        ptx::named_barrier_sync(kBarriersInitialized, Shape::kThreads);
        arrive_at_cluster();
        ptx::wait_for_previous_grids();
        scales.write(shared.products);
        ptx::named_barrier_sync(kProductsWritten, Shape::kConsumers);
        float sums[Shape::kWaveRegisters];
        // A stage that is filled once need not be handed back.
        constexpr bool kRefills = Shape::kSteps > Config::kStages;
        SwapAbMultiplier<Config, kRefills>(shared.stages, shared.products, warp).run(sums);
        const PieceStore<Config> store(params);
        Reduction::give(shared.reduction, split, tokens, warp, sums);
        Reduction::for_each_piece(shared.reduction, split, tokens,
                                  [&](uint32_t token, uint32_t col, float (&piece)[Reduction::kColsOfPiece]) {
                                      store.write(split.tile.m * Shape::kTokens + token,
                                                  split.tile.n * Shape::kRows + col, piece);
                                  });
    }

    /// The barriers of this CTA may be used by the others of its cluster once all have arrived here.
    static FP8GEMM_DEVICE void arrive_at_cluster() {
        if constexpr (Config::kSplitK > 1) {
            ptx::cluster_arrive();
        }
    }
};

}  // namespace fp8gemm
