// Grouped NT GEMM for groups of few rows: D[m, N] = (A * scales_a)[m, K] (B[g] * scales_b[g])[N, K]^T for each row m of
// group g (contiguous or masked), where the time is that of streaming the weights of the groups that have rows.
//
// The operands are swapped, as in swap_ab.cuh; K is not divided among CTAs, because groups give tiles enough. CTAs are
// persistent, several to an SM: each takes every gridDim.x-th tile, and while it adds up, rounds and writes one tile the
// weights of the next are on their way.
//
// Programmatic launch. If the host says so, what rows are whose is read, and as much of the first tile's weight as the ring
// holds is asked for, before the grids ahead have ended; tokens, their scales and the output wait for them. The kernel behind
// this one may start when all loads are on their way: earlier, it would take the places of CTAs that have ended, and the
// weights of its own that it asks for there would hold up what is left of this one's. No CTA lets it start without having
// waited itself, not one without a tile either: who starts behind may rely on what was there when this kernel's grid could.
//
// Warp roles
//   warpgroups 0...      multiply: for each tile products of scales, WGMMA, promotion, sum of the shares, output
//   the last warp        load: one thread fills the operand ring by TMA, tile after tile
//
// Shared memory (SharedStorage)
//   stages, products, reduction   as in swap_ab.cuh
//   groups.table                  the range of each group that has tiles, and how many tiles come up to its last: filled by
//                                 all threads before the roles begin
//
// Barriers                arrives                                count                       first wait, parity
//   stages.ring.full      load thread (expect_tx) + the bytes    1                           multiply, 0
//   stages.ring.empty     a lane of each consumer warp           warps                       load, 1
//   kProductsWritten      consumers                              all consumers               multiply, once a tile
//   kSharesStored         consumers: products are read too       all consumers               multiply, once a tile
//   the CTA's own         every thread                           all threads                 all, as the table is filled:
//                                                                barriers are initialised, the table may be read
#pragma once

#include "fp8gemm/epilogue/cluster_reduction.cuh"
#include "fp8gemm/epilogue/piece_store.cuh"
#include "fp8gemm/kernels/params.cuh"
#include "fp8gemm/mainloop/fill_table.cuh"
#include "fp8gemm/mainloop/swap_ab_multiply.cuh"
#include "fp8gemm/mainloop/swap_ab_stage.cuh"
#include "fp8gemm/scheduler/grouped.cuh"

namespace fp8gemm {

template <class Config>
struct GroupedSwapAb {
    using Shape = SwapAbShape<Config>;
    using Stages = SwapAbStages<Config>;
    using Reduction = ClusterReduction<Config>;
    using Schedule = GroupedSchedule<Config>;
    using Filler = GroupTableFiller<Config, Shape::kThreads>;
    using Tile = typename Schedule::Tile;
    using Params = KernelParams;

    static constexpr uint32_t kNumThreads = Shape::kThreads;
    static_assert(Config::kSplitK == 1, "a tile's K is one CTA's");

    struct SharedStorage {
        Stages stages;
        alignas(16) typename ScaleProducts<Config>::OfBlock products[Shape::kBlocksOfCta];
        typename Reduction::SharedStorage reduction;
        typename Filler::SharedStorage groups;
    };
    static_assert(sizeof(SharedStorage) == Config::kSharedBytes, "the host computes another size of shared memory");

    static FP8GEMM_DEVICE void run(const Params& params) {
        extern __shared__ __align__(1024) uint8_t shared_bytes[];
        auto& shared = *reinterpret_cast<SharedStorage*>(shared_bytes);
        const uint32_t warp = ptx::warp_index();
        if (warp == 0 && ptx::elect_one()) {
            SwapAbCopies<Config>::prefetch_maps(params);
        }
        if (warp == Shape::kLoadWarp && ptx::elect_one()) {
            shared.stages.ring.initialize(1, Shape::kLoadWarp);
            ptx::fence_mbarrier_init();
        }
        if (params.static_weights == 0) {
            ptx::wait_for_previous_grids();
        }
        Filler::fill(params, shared.groups);
        const Schedule schedule(shared.groups.table, params.m, blockIdx.x, gridDim.x, 0, 0);
        if (warp != Shape::kLoadWarp) {
            ptx::wait_for_previous_grids();
            multiply(params, shared, schedule, warp);
        } else if (ptx::elect_one()) {
            load(params, shared.stages, schedule);
        }
    }

private:
    /// Steps of the first tile that find the ring empty.
    static constexpr uint32_t kAhead = minimum(Shape::kSteps, Config::kStages);

    static FP8GEMM_DEVICE void load(const Params& params, Stages& stages, Schedule schedule) {
        SwapAbCopies<Config> copies(params, stages);
        Tile tile;
        const bool has_tile = schedule.next(tile);
        if (has_tile) {
#pragma unroll 1
            for (uint32_t step = 0; step < kAhead; ++step) {
                ptx::mbarrier_arrive_expect_tx(&stages.ring.full[step], Stages::kBytes);
                copies.load_weights(tile.row_of_b(), step * Shape::kBlocksPerStage, step);
            }
        }
        ptx::wait_for_previous_grids();
        if (has_tile) {
#pragma unroll 1
            for (uint32_t step = 0; step < kAhead; ++step) {
                copies.load_tokens(tile.row_of_a(), step * Shape::kBlocksPerStage, step);
            }
            load_rest(stages, copies, schedule, tile);
        }
        // All that this CTA reads is on its way.
        ptx::launch_dependents();
    }

    /// All but the first steps of `tile`, and the tiles behind it.
    static FP8GEMM_DEVICE void load_rest(Stages& stages, SwapAbCopies<Config>& copies, Schedule& schedule, Tile& tile) {
        typename Stages::Ring::State state{kAhead % Config::kStages, kAhead < Config::kStages ? 1u : 0u};
        uint32_t step = kAhead;
        do {
#pragma unroll 1
            for (; step < Shape::kSteps; ++step) {
                stages.ring.wait_empty(state);
                ptx::mbarrier_arrive_expect_tx(&stages.ring.full[state.stage], Stages::kBytes);
                copies.load_weights(tile.row_of_b(), step * Shape::kBlocksPerStage, state.stage);
                copies.load_tokens(tile.row_of_a(), step * Shape::kBlocksPerStage, state.stage);
                state.advance();
            }
            step = 0;
        } while (schedule.next(tile));
    }

    static FP8GEMM_DEVICE void multiply(const Params& params, SharedStorage& shared, Schedule schedule, uint32_t warp) {
        SwapAbMultiplier<Config, true> multiplier(shared.stages, shared.products, warp);
        const PieceStore<Config> store(params);
        Tile tile;
        while (schedule.next(tile)) {
            const uint32_t first_row = tile.row_of_d();
            const uint32_t tokens = minimum(tile.end_of_d(params.m) - first_row, Shape::kTokens);
            ScaleProducts<Config> scales(scales_of(params, tile), 0, tokens);
            scales.begin();
            scales.write(shared.products);
            ptx::named_barrier_sync(kProductsWritten, Shape::kConsumers);
            float sums[Shape::kWaveRegisters];
            multiplier.run(sums);
            const SplitTile whole{tile, 0};
            Reduction::give(shared.reduction, whole, tokens, warp, sums);
            Reduction::for_each_piece(shared.reduction, whole, tokens,
                                      [&](uint32_t token, uint32_t col, float (&piece)[Reduction::kColsOfPiece]) {
                                          store.write(first_row + token, tile.col_of_d() + col, piece);
                                      });
        }
    }

    static FP8GEMM_DEVICE TileScales scales_of(const Params& params, const Tile& tile) {
        const float* of_group = params.scales_a;
        if constexpr (Config::kGrouping == Grouping::kMasked) {
            of_group += tile.group * params.scales_a_stride_group;
        }
        const uint32_t row_of_scales_b = tile.first_block_of_b() + Shape::row_of_scales_b(tile.n);
        const uint32_t row_of_scales_a = tile.row_of_scales_a() + tile.skipped_scales_a();
        return {of_group + row_of_scales_a * params.scales_a_stride_m, params.scales_a_stride_m,
                params.scales_a_stride_k, params.scales_b + row_of_scales_b * Shape::kNumKBlocks};
    }
};

}  // namespace fp8gemm
