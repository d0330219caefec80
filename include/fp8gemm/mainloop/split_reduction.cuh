// The end of a tile whose K the CTAs of a cluster divide: each sends the others their columns of its sums, straight from
// registers into their shared memory, and adds up what it is given of its own.
//
//                        columns of a warpgroup, kSplitK = 3
//     CTA 0 (share 0)    [ keeps  ][ sends  ][ sends  ]      Thread t of a CTA holds the same rows and columns as thread t
//     CTA 1 (share 1)    [ sends  ][ keeps  ][ sends  ]      of any other, so sums go from thread to thread.
//     CTA 2 (share 2)    [ sends  ][ sends  ][ keeps  ]
//
// Shares are added in ascending order of K. Each place is written once, and a barrier here counts the bytes: a CTA waits for
// the others to be ready once, ahead of the first sum, and it leaves when it has everything that is ever written to it.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/ptx/cluster.cuh"

namespace fp8gemm {

template <class Config>
struct SplitReduction {
    using Shape = TileShape<Config>;
    using Totals = typename TileShape<Summed<Config>>::Accumulators;

    static constexpr uint32_t kSplit = Config::kSplitK;
    static constexpr uint32_t kThreads = Shape::kWarpgroups * kThreadsPerWarpgroup;
    static constexpr uint32_t kCols = TileShape<Summed<Config>>::kWarpgroupCols;  ///< of a warpgroup, that a CTA keeps
    static constexpr uint32_t kPiecesOfWave = kCols / 8;  ///< four sums of a thread each, in 64 rows by 8 columns
    static constexpr uint32_t kPieces = Shape::kWavesM * kPiecesOfWave;
    static constexpr uint32_t kSumsOfWave = Shape::kWarpgroupCols / 2;  ///< of a thread, in 64 rows
    static_assert(TileShape<Summed<Config>>::kWavesN == 1, "columns that a CTA keeps are of one wave");
    static_assert(Config::kWarpgroupsK == 1, "the warpgroups' shares of K would not be added up");

    struct SharedStorage {
        /// By who sends them: the other CTAs in the order of their shares.
        alignas(1024) float4 given[kSplit - 1][kPieces][kThreads];
        uint64_t full;

        /// By one thread, before any CTA gives its sums.
        FP8GEMM_DEVICE void initialize() {
            ptx::mbarrier_init(&full, 1);
            ptx::mbarrier_arrive_expect_tx(&full, sizeof(given));
        }
    };

    /// By all consumers, once: the sums of the columns that this CTA keeps, over all of K.
    static FP8GEMM_DEVICE Totals& add(SharedStorage& shared, uint32_t, typename Shape::Accumulators& accumulators) {
        auto& sums = reinterpret_cast<float (&)[Shape::kWavesM][kSumsOfWave]>(accumulators);
        const uint32_t thread = threadIdx.x - kThreadsPerWarpgroup;
        const uint32_t share = ptx::cluster_rank();
        ptx::cluster_wait();  // until every CTA has initialised its barrier
#pragma unroll
        for (uint32_t other = 0; other < kSplit; ++other) {
            if (other != share) {
                send(shared, share, other, thread, sums);
            }
        }
        ptx::mbarrier_wait_cluster(&shared.full, 0);
        // In place: no sum lies ahead of its total.
        auto& totals = reinterpret_cast<Totals&>(accumulators);
#pragma unroll
        for (uint32_t piece = 0; piece < kPieces; ++piece) {
            add_up(shared, share, piece, thread, sums, &totals[piece / kPiecesOfWave][0][piece % kPiecesOfWave * 4]);
        }
        return totals;
    }

private:
    using Sums = float[Shape::kWavesM][kSumsOfWave];

    /// The first of a piece's four sums among those of the rows' waves, of the columns that a CTA keeps.
    static FP8GEMM_DEVICE float* piece_of(Sums& sums, uint32_t cta, uint32_t piece) {
        return &sums[piece / kPiecesOfWave][(cta * kPiecesOfWave + piece % kPiecesOfWave) * 4];
    }

    static FP8GEMM_DEVICE void send(SharedStorage& shared, uint32_t share, uint32_t receiver, uint32_t thread,
                                    Sums& sums) {
        const uint32_t sender = share - (share > receiver);  // without the receiver's own
        const uint32_t place = ptx::cluster_address(&shared.given[sender][0][thread], receiver);
        const uint32_t full = ptx::cluster_address(&shared.full, receiver);
#pragma unroll
        for (uint32_t piece = 0; piece < kPieces; ++piece) {
            const float* const of_piece = piece_of(sums, receiver, piece);
            ptx::store_async(place + piece * sizeof(shared.given[0][0]), full,
                             make_float4(of_piece[0], of_piece[1], of_piece[2], of_piece[3]));
        }
    }

    static FP8GEMM_DEVICE void add_up(const SharedStorage& shared, uint32_t share, uint32_t piece, uint32_t thread,
                                      Sums& sums, float* totals) {
        float4 given[kSplit - 1];
#pragma unroll
        for (uint32_t sender = 0; sender < kSplit - 1; ++sender) {
            given[sender] = shared.given[sender][piece][thread];
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            float own = piece_of(sums, 0, piece)[i];
#pragma unroll
            for (uint32_t cta = 1; cta < kSplit; ++cta) {
                own = cta == share ? piece_of(sums, cta, piece)[i] : own;
            }
            float total = share == 0 ? own : element(given[0], i);
#pragma unroll
            for (uint32_t k = 1; k < kSplit; ++k) {
                const float before = element(given[k - 1], i);
                const float behind = k < kSplit - 1 ? element(given[minimum(k, kSplit - 2)], i) : before;
                total += k == share ? own : k < share ? behind : before;
            }
            totals[i] = total;
        }
    }

    static FP8GEMM_DEVICE float element(float4 four, uint32_t i) {
        return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
    }
};

}  // namespace fp8gemm
