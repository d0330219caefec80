// Promotion with one scale per 128x128 block of B: a warpgroup's columns have one of them per K block or, where they lie
// across the border of two blocks, two.
//
// Where the border is depends on the tile, and holds for all of it. It falls on multiples of the greatest common divisor
// of the width and 128, and not beyond column 128: columns of 192 are before it up to 64, beyond it from 128 on, and in
// between it is one or the other. Where promotion is hidden behind the wave in flight, it looks. Where it stands between
// one block and the next, that would cost 5 % (4096x7168x2048 at 128x160, H200, 2026-11-21). Columns between the two borders
// that a loop is for then have a scale of their own, which is chosen when scales are fetched, beside the promotion of the K
// block before. Where tiles have more borders there are copies of the main loop (chunk_plan.cuh): of columns of 160 two, and of
// 144 four, for two borders each; of 96, and of 160 under an epilogue that has addresses, four for one each, with none between:
//
//     columns of 192   0               64              128             192
//     borders 64, 128  [    before     |    between    |    beyond     ]
//     columns of 144   0   16  32 ...                  128 144
//     borders 16, 32   [bef|btw|        beyond             ]       and so 48, 64, and 80, 96, and 112, 128
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/memory.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/wgmma.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

/// One warpgroup's reader of the block scales.
///
/// Each lane loads the scale of another K block of the warpgroup's share, so one load covers 32 of them, and a shuffle
/// hands out the one in use. A tile's first 64, or all up to 128 of them, are loaded before the epilogue of the tile
/// before it, and others 32 blocks ahead, so that no block waits for device memory.
template <class Config>
class BlockScales {
    using Shape = TileShape<Config>;
    static constexpr uint32_t kNumNBlocks = ceil_div(Config::kN, kScaleBlock);

public:
    static constexpr uint32_t kBorderStep = greatest_common_divisor(Shape::kWarpgroupCols, kScaleBlock);
    static constexpr uint32_t kBlocks = Shape::kWarpgroupCols > kBorderStep ? 2 : 1;
    static_assert(kScaleBlock - kBorderStep + Shape::kWarpgroupCols <= 2 * kScaleBlock, "columns lie in two blocks");
    /// Whether scales of B are taken into registers of their own while the K block before is promoted. Taken beside the first
    /// wave they hold up that wave's later WGMMAs, which the assembler puts behind the first use of a scale: 1 % of 192x96,
    /// -0.5 to +1.0 of 128x160 and 128x192 (bursts, H200, 2026-11-29). Two waves in flight hide it.
    static constexpr bool kFetches = Config::kWavesInFlight == 1;
    /// Whether scales of A, too, are in registers before their K block is multiplied, for the same reason: both are 1 % of
    /// 128x256 from K = 1536 on (H200, 2026-11-23). Waves of 160 columns and more hide it, and lose by the registers; with three
    /// warpgroups, which have few, it was not measured.
    static constexpr bool kAhead = kFetches && Shape::kWavesM * Shape::kWavesN > 1;
    /// Promotion has all it needs in registers, and products have all that is loaded.
    static constexpr bool kReadsStage = false;
    static constexpr bool kKeeps = false;

private:
    /// Loads that cover the share of K, and how many of them a thread holds. Where it is all, up to 128 K blocks with
    /// one wave in flight, the main loop loads nothing: 0.7 % of seven products of more than 64, where two were held,
    /// in bursts and under load (128x192, 128x256, 256x128, 192x96; H200, 2026-11-29). 128x128, with two waves in
    /// flight, loses 0.8 and 1.4 % by the registers.
    static constexpr uint32_t kLoads = ceil_div(Shape::kNumSteps, kThreadsPerWarp);
    static constexpr uint32_t kHeld = kLoads <= 4 && Config::kWavesInFlight == 1 ? maximum(kLoads, 2u) : 2;
    /// Scales that columns have in a K block: that of the first block, of columns between two borders, of the last block.
    static constexpr uint32_t kScales = kFetches && kBlocks == 2 ? 3 : kBlocks;

    const float* scales_;
    uint32_t first_col_;  ///< of the warpgroup in the CTA tile
    uint32_t share_;      ///< of K that is the warpgroup's
    uint32_t border_;
    uint32_t first_of_cta_;       ///< K block of the tile
    const float* rows_[kBlocks];  ///< the scales of each block's rows
    // NOTE: As one array they give kernels with two waves in flight other machine code, though they hold the same.
    float chunk_[kBlocks];
    float behind_[kBlocks][kHeld - 1];
    float fetched_[kScales];  ///< with kFetches, of the K block that is multiplied, and then of the next

public:
    /// The products s of this thread's upper and lower row.
    struct Products {
        float upper[kScales];
        float lower[kScales];
    };

    /// `scales` is (ceil(N / 128), ceil(K / 128)), row-major, for each group.
    FP8GEMM_DEVICE BlockScales(const float* scales, const OperandStages<Config>&, uint32_t first_col, uint32_t share)
        : scales_(scales), first_col_(first_col), share_(share) {}

    /// Asks for the first scales of a tile.
    template <class Tile>
    FP8GEMM_DEVICE void begin(const Tile& tile) {
        const uint32_t col = tile.first_col() + first_col_;
        first_of_cta_ = tile.first_k_block();
        border_ = kScaleBlock - col % kScaleBlock;
#pragma unroll
        for (uint32_t block = 0; block < kBlocks; ++block) {
            // Columns past the last are stored nowhere; any scale that may be read will do.
            const uint32_t row = tile.first_block_of_b() + minimum(col / kScaleBlock + block, kNumNBlocks - 1);
            rows_[block] = scales_ + row * Shape::kNumKBlocks;
            chunk_[block] = load(block, 0);
#pragma unroll
            for (uint32_t i = 0; i < kHeld - 1; ++i) {
                behind_[block][i] = load(block, (i + 1) * kThreadsPerWarp);
            }
        }
    }

    /// To be called once for each `k_block` that is a multiple of 32, between the products of the K block before it and
    /// its own; with kFetches, between what is fetched for them. Here and below K blocks are counted within the share.
    ///
    /// NOTE: Loaded in place. What a plain load gives, the compiler moves at the chunk's end to where the next turn of the
    /// loop wants it, and a move waits for the load: 0.1 to 0.6 % of products whose K is 16384 at 128x256 and 128x192, in
    /// bursts, when those held two loads (H200, 2026-11-28). With two waves in flight the assembler puts the move behind
    /// the load instead; 128x128 is 1.3 % faster all the same.
    FP8GEMM_DEVICE void advance(uint32_t k_block) {
        if (kLoads > 1 && k_block % kThreadsPerWarp == 0 && k_block != 0) {
#pragma unroll
            for (uint32_t block = 0; block < kBlocks; ++block) {
                chunk_[block] = behind_[block][0];
#pragma unroll
                for (uint32_t i = 1; i < kHeld - 1; ++i) {
                    behind_[block][i - 1] = behind_[block][i];
                }
                if constexpr (kLoads > kHeld) {
                    const uint32_t next = of_lane(k_block + kThreadsPerWarp);
                    ptx::load_global_in_place(next < Shape::kNumKBlocks, rows_[block] + next, behind_[block][0]);
                }
            }
        }
    }

    /// Takes the scales of a K block into registers of their own, ahead of `products`. (Behind the last one nobody uses them.)
    FP8GEMM_DEVICE void fetch(uint32_t k_block) {
        fetched_[0] = of_block(0, k_block);
        if constexpr (kScales == 3) {
            fetched_[2] = of_block(1, k_block);
            fetched_[1] = is_at_first_of_two() ? fetched_[2] : fetched_[0];
        }
    }

    /// `scales_a` are those of this thread's upper and lower row of the wave. Those of B are in registers already.
    FP8GEMM_DEVICE Products products(uint32_t, uint32_t k_block, uint32_t wave, const float (&scales_a)[2]) const {
        Products products;
#pragma unroll
        for (uint32_t i = 0; i < kScales; ++i) {
            if (may_have(wave, i)) {
                const float scale_b = kFetches ? fetched_[i] : of_block(i, k_block);
                products.upper[i] = scales_a[0] * scale_b;
                products.lower[i] = scales_a[1] * scale_b;
            }
        }
        return products;
    }

    /// Columns of the warpgroup's part of the tile that was begun that come before the border: a multiple of
    /// `kBorderStep`, from that to 128.
    FP8GEMM_DEVICE uint32_t border() const { return border_; }

    /// Adds a wave's block sums, times the products, to its accumulators. The tile's border is one of `borders`, which
    /// are constants.
    FP8GEMM_DEVICE void promote(Borders borders, uint32_t wave, const Products& products,
                                const float (&block_sums)[Shape::kWaveRegisters],
                                float (&accumulators)[Shape::kWaveRegisters], uint32_t&) const {
#pragma unroll
        for (uint32_t i = 0; i < Shape::kWaveRegisters; i += 4) {
            const uint32_t col = (wave * Shape::kWaveN + i * 2) / kBorderStep * kBorderStep;
            const float upper = of_col(products.upper, borders, col);
            const float lower = of_col(products.lower, borders, col);
            ptx::fma_in_order(upper, block_sums[i + 0], accumulators[i + 0]);
            ptx::fma_in_order(upper, block_sums[i + 1], accumulators[i + 1]);
            ptx::fma_in_order(lower, block_sums[i + 2], accumulators[i + 2]);
            ptx::fma_in_order(lower, block_sums[i + 3], accumulators[i + 3]);
        }
    }

private:
    /// (Of a lane's number the shuffle reads the lowest five bits.)
    FP8GEMM_DEVICE float of_block(uint32_t block, uint32_t k_block) const {
        return __shfl_sync(0xffffffffu, chunk_[block], k_block);
    }

    /// Of the two borders that columns lie between, whether the tile's is the first.
    FP8GEMM_DEVICE bool is_at_first_of_two() const { return (border_ & kBorderStep) != 0; }

    /// Which of the values is a column's, where the tile's border is one of `borders`.
    FP8GEMM_DEVICE float of_col(const float (&values)[kScales], Borders borders, uint32_t col) const {
        const float before = values[0], beyond = values[kScales - 1];
        if (col < borders.least) {
            return before;
        }
        if (col >= borders.largest) {
            return beyond;
        }
        return kFetches ? values[kScales / 2] : col >= border_ ? beyond : before;
    }

    /// Whether columns of a wave have a scale, in one tile or another.
    FP8GEMM_DEVICE static constexpr bool may_have(uint32_t wave, uint32_t i) {
        return (i == kScales - 1 || wave * Shape::kWaveN < kScaleBlock) &&
               (i == 0 || (wave + 1) * Shape::kWaveN > kBorderStep);
    }

    /// The K block of the tile whose scale is this lane's, of those from one of the share on.
    FP8GEMM_DEVICE uint32_t of_lane(uint32_t first_k_block) const {
        return first_of_cta_ + (first_k_block + ptx::lane_index()) * Config::kWarpgroupsK + share_;
    }

    FP8GEMM_DEVICE float load(uint32_t block, uint32_t first_k_block) const {
        const uint32_t k_block = of_lane(first_k_block);
        // NOTE: Not __ldg, which is for memory that nobody writes while this kernel runs: with programmatic dependent launch
        // it may have been running when the kernel ahead wrote them. Plain loads see what was written before the wait.
        return k_block < Shape::kNumKBlocks ? rows_[block][k_block] : 0.0f;
    }
};

}  // namespace fp8gemm
