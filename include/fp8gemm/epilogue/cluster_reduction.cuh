// The end of a tile whose K was divided, over the CTAs of a cluster, the warpgroups of each and their slices: all shares
// meet in shared memory and are added up in a fixed order.
//
// In one CTA they are stored there. In a cluster, CTA r sums and writes every column in the r-th part of the tile's: each
// warp sends its sums straight to the CTA that they belong to, and a barrier there counts the bytes. No CTA needs to wait
// for the others' end: it leaves when it has everything that is ever written to it.
#pragma once

#include "fp8gemm/common/swap_ab_shape.cuh"
#include "fp8gemm/ptx/cluster.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/scheduler/tile_order.cuh"

namespace fp8gemm {

/// Barriers of named_barrier_*; 0 is that of __syncthreads.
enum SwapAbBarrier : uint32_t {
    kBarriersInitialized = 1,
    kProductsWritten = 2,
    kSharesStored = 3,
};

/// Adds up the shares of a tile: see `SwapAbShape::kShares` for their order.
template <class Config>
class ClusterReduction {
    using Shape = SwapAbShape<Config>;
    static constexpr uint32_t kColsOfThread = Shape::kTokens * Shape::kRows / (Config::kSplitK * Shape::kConsumers);

public:
    /// Neighbouring columns of two tokens that a thread adds up and writes: few, if there are not enough for all threads.
    static constexpr uint32_t kColsOfPiece = kColsOfThread >= 4 ? 4 : kColsOfThread >= 2 ? 2 : 1;

private:
    static constexpr uint32_t kPieces = Shape::kRows / kColsOfPiece;  ///< of two tokens
    static constexpr uint32_t kPiecesOfCta = ceil_div(kPieces, Config::kSplitK);
    static constexpr uint32_t kColsOfCta = kPiecesOfCta * kColsOfPiece;
    /// NOTE: Four pairs more than needed, so that half a warp's store, 4 columns by 4 pairs, touches every bank once.
    static constexpr uint32_t kPitch = ceil_div(kColsOfCta, 4u) * 4 + 4;
    static constexpr uint32_t kSumsOfWarp = Shape::kTokens / 2;

public:
    struct SharedStorage {
        /// By column the sums of two neighbouring tokens, which a thread has side by side and stores at once.
        alignas(16) float2 shares[Shape::kShares][Shape::kTokens / 2][kPitch];
        uint64_t full;
    };

    /// By one thread, before any share is given.
    static FP8GEMM_DEVICE void initialize(SharedStorage& shared) {
        if constexpr (Config::kSplitK > 1) {
            ptx::mbarrier_init(&shared.full, 1);
        }
    }

    /// By one thread, which does not wait for the shares itself, once: bytes of them that have come are counted below zero.
    /// `tokens` is how many of the tile exist.
    static FP8GEMM_DEVICE void expect(SharedStorage& shared, SplitTile split, uint32_t tokens) {
        if constexpr (Config::kSplitK > 1) {
            ptx::mbarrier_arrive_expect_tx(&shared.full, Shape::kShares * pairs_of(tokens) * pieces_of(split.rank) *
                                                             kColsOfPiece * sizeof(float2));
        }
    }

    /// By every consumer: gives this thread's sums.
    static FP8GEMM_DEVICE void give(SharedStorage& shared, SplitTile split, uint32_t tokens, uint32_t warp,
                                    const float (&sums)[Shape::kWaveRegisters]) {
        if constexpr (Config::kSplitK > 1) {
            ptx::cluster_wait();  // until every CTA has initialised its barrier
        }
        const uint32_t lane = ptx::lane_index();
        const uint32_t block = warp / Shape::kWarpsPerBlock;
        const uint32_t slice = block % Shape::kSlices;
        const uint32_t share = split.rank * Shape::kBlocksPerStage + block;
        const uint32_t row = warp % Shape::kWarpsPerBlock * kRowsPerWarp + lane / 4;
        const uint32_t first_pair = lane % 4;
        const uint32_t pairs = pairs_of(tokens);
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const Destination destination(shared, share, first_pair, row + half * 8);
#pragma unroll
            for (uint32_t pair = 0; pair < kSumsOfWarp; pair += 4) {
                if (first_pair + pair < pairs) {
                    const uint32_t sum = pair + half * 2;
                    destination.give(pair, {of_slice(sums, slice, sum), of_slice(sums, slice, sum + 1)});
                }
            }
        }
    }

    /// By every consumer: calls visit(token, column, sums) for its pieces of the CTA's part of the tile.
    template <class Visitor>
    static FP8GEMM_DEVICE void for_each_piece(SharedStorage& shared, SplitTile split, uint32_t tokens,
                                              const Visitor& visit) {
        const uint32_t pieces = pieces_of(split.rank);
        if constexpr (Config::kSplitK > 1) {
            if (pieces != 0) {
                ptx::mbarrier_wait_cluster(&shared.full, 0);
            }
        } else {
            ptx::named_barrier_sync(kSharesStored, Shape::kConsumers);
        }
        for (uint32_t i = threadIdx.x; i < pairs_of(tokens) * kPiecesOfCta; i += Shape::kConsumers) {
            const uint32_t pair = i / kPiecesOfCta;
            const uint32_t piece = i % kPiecesOfCta;
            if (piece < pieces) {
                float sums[2][kColsOfPiece];
                add_up(shared, pair, piece * kColsOfPiece, sums);
                const uint32_t col = split.rank * kColsOfCta + piece * kColsOfPiece;
                visit(pair * 2, col, sums[0]);
                if (pair * 2 + 1 < tokens) {
                    visit(pair * 2 + 1, col, sums[1]);
                }
            }
        }
    }

private:
    /// Where a thread's sums of one column go, by pairs of tokens: to this CTA or to another of the cluster.
    class Destination {
        float2* place_;
        uint32_t remote_;
        uint32_t remote_barrier_;

    public:
        FP8GEMM_DEVICE Destination(SharedStorage& shared, uint32_t share, uint32_t pair, uint32_t col)
            : place_(&shared.shares[share][pair][col % kColsOfCta]) {
            if constexpr (Config::kSplitK > 1) {
                const uint32_t owner = col / kColsOfCta;
                remote_ = ptx::cluster_address(place_, owner);
                remote_barrier_ = ptx::cluster_address(&shared.full, owner);
            }
        }

        /// `pair` counts from that of the constructor.
        FP8GEMM_DEVICE void give(uint32_t pair, float2 sums) const {
            if constexpr (Config::kSplitK > 1) {
                ptx::store_async(remote_ + pair * kPitch * sizeof(float2), remote_barrier_, sums);
            } else {
                place_[pair * kPitch] = sums;
            }
        }
    };

    /// Of the last pair the second token may not exist; its sums are given all the same.
    static FP8GEMM_DEVICE uint32_t pairs_of(uint32_t tokens) { return ceil_div(tokens, 2u); }

    static FP8GEMM_DEVICE uint32_t pieces_of(uint32_t rank) {
        const uint32_t first = minimum(rank * kPiecesOfCta, kPieces);
        return minimum(kPieces - first, kPiecesOfCta);
    }

    static FP8GEMM_DEVICE float of_slice(const float (&sums)[Shape::kWaveRegisters], uint32_t slice, uint32_t i) {
        float sum = sums[i];
#pragma unroll
        for (uint32_t s = 1; s < Shape::kSlices; ++s) {
            sum = slice == s ? sums[s * kSumsOfWarp + i] : sum;
        }
        return sum;
    }

    static FP8GEMM_DEVICE void add_up(const SharedStorage& shared, uint32_t pair, uint32_t col,
                                      float (&sums)[2][kColsOfPiece]) {
        struct alignas(minimum(kColsOfPiece * sizeof(float2), sizeof(float4))) Piece {
            float2 of[kColsOfPiece];
        };
#pragma unroll
        for (uint32_t share = 0; share < Shape::kShares; ++share) {
            const Piece given = *reinterpret_cast<const Piece*>(&shared.shares[share][pair][col]);
#pragma unroll
            for (uint32_t i = 0; i < kColsOfPiece; ++i) {
                sums[0][i] = share == 0 ? given.of[i].x : sums[0][i] + given.of[i].x;
                sums[1][i] = share == 0 ? given.of[i].y : sums[1][i] + given.of[i].y;
            }
        }
    }
};

}  // namespace fp8gemm
