// The end of a tile whose K was divided: the shares meet in shared memory and are added up in a fixed order.
//
// In one CTA they are stored there. In a cluster, CTA r sums and writes every column in the r-th part of the tile's: each
// warp sends its sums straight to the CTA that they belong to, and a barrier there counts the bytes. No CTA needs to wait
// for the others' end: it leaves when it has everything that is ever written to it.
#pragma once

#include "fp8gemm/common/swap_ab_shape.cuh"
#include "fp8gemm/ptx/cluster.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/scheduler/split.cuh"

namespace fp8gemm {

/// Barriers of named_barrier_*; 0 is that of __syncthreads.
enum SwapAbBarrier : uint32_t {
    kBarriersInitialized = 1,
    kProductsWritten = 2,
    kSharesStored = 3,
};

template <class Config>
class ShareSums {
    using Shape = SwapAbShape<Config>;
    static constexpr uint32_t kColsOfThread = Shape::kTokens * Shape::kRows / (Config::kSplitK * Shape::kConsumers);

public:
    /// Neighbouring columns of the output that a thread adds up and writes: few, if there are not enough for all threads.
    static constexpr uint32_t kColsOfPiece = kColsOfThread >= 4 ? 4 : kColsOfThread >= 2 ? 2 : 1;

private:
    static constexpr uint32_t kPieces = Shape::kRows / kColsOfPiece;  ///< of a row of the tile
    static constexpr uint32_t kPiecesOfCta = ceil_div(kPieces, Config::kSplitK);
    static constexpr uint32_t kColsOfCta = kPiecesOfCta * kColsOfPiece;
    /// NOTE: Four floats more than needed, so that a warp's store of 8 columns by 4 tokens touches every bank once.
    static constexpr uint32_t kPitch = ceil_div(kColsOfCta, 4u) * 4 + 4;
    static constexpr uint32_t kSumsOfWarp = Shape::kTokens / 2;

public:
    struct SharedStorage {
        alignas(16) float shares[Shape::kShares][Shape::kTokens][kPitch];
        uint64_t full;
    };

    /// By one thread, before any share is given. `tokens` is how many of the tile exist.
    static FP8GEMM_DEVICE void initialize(SharedStorage& shared, SplitTile split, uint32_t tokens) {
        if constexpr (Config::kSplitK > 1) {
            ptx::mbarrier_init(&shared.full, 1);
            ptx::mbarrier_arrive_expect_tx(
                &shared.full, Shape::kShares * tokens * pieces_of(split.rank) * kColsOfPiece * sizeof(float));
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
#pragma unroll
        for (uint32_t i = 0; i < kSumsOfWarp; ++i) {
            const uint32_t token = i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (token < tokens) {
                give_one(shared, share, token, row + i % 4 / 2 * 8, of_slice(sums, slice, i));
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
        for (uint32_t i = threadIdx.x; i < tokens * kPiecesOfCta; i += Shape::kConsumers) {
            const uint32_t token = i / kPiecesOfCta;
            const uint32_t piece = i % kPiecesOfCta;
            if (piece < pieces) {
                float sums[kColsOfPiece];
                add_up(shared, token, piece * kColsOfPiece, sums);
                visit(token, split.rank * kColsOfCta + piece * kColsOfPiece, sums);
            }
        }
    }

private:
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

    static FP8GEMM_DEVICE void give_one(SharedStorage& shared, uint32_t share, uint32_t token, uint32_t col,
                                        float sum) {
        float* place = &shared.shares[share][token][col % kColsOfCta];
        if constexpr (Config::kSplitK > 1) {
            ptx::store_async(place, &shared.full, col / kColsOfCta, sum);
        } else {
            *place = sum;
        }
    }

    static FP8GEMM_DEVICE void add_up(const SharedStorage& shared, uint32_t token, uint32_t col,
                                      float (&sums)[kColsOfPiece]) {
        struct alignas(kColsOfPiece * sizeof(float)) Piece {
            float of[kColsOfPiece];
        };
#pragma unroll
        for (uint32_t share = 0; share < Shape::kShares; ++share) {
            const Piece given = *reinterpret_cast<const Piece*>(&shared.shares[share][token][col]);
#pragma unroll
            for (uint32_t i = 0; i < kColsOfPiece; ++i) {
                sums[i] = share == 0 ? given.of[i] : sums[i] + given.of[i];
            }
        }
    }
};

}  // namespace fp8gemm
