// The end of a tile whose K two warpgroups share: each hands the other its sums of half of the columns, through shared
// memory, and keeps the total of the other half. A total is one addition, the same in whichever order, so the result does
// not depend on which warpgroup comes first.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

/// Barriers of named_barrier_*; 0 is that of __syncthreads.
enum NamedBarrier : uint32_t {
    kFirstShareGiven = 1,
    kSecondShareGiven = 2,
};

/// Adds up the sums of the warpgroups that share K; with K in one share there is nothing to add.
template <class Config, uint32_t kShares = Config::kWarpgroupsK>
struct WarpgroupReduction {
    static_assert(kShares == 1, "K is divided among two warpgroups at most");

    struct SharedStorage {
        static FP8GEMM_DEVICE void initialize() {}
    };

    using Accumulators = typename TileShape<Config>::Accumulators;

    static FP8GEMM_DEVICE Accumulators& add(SharedStorage&, uint32_t, Accumulators& accumulators) {
        return accumulators;
    }
};

template <class Config>
struct WarpgroupReduction<Config, 2> {
    using Shape = TileShape<Config>;
    using Totals = typename TileShape<Summed<Config>>::Accumulators;

    static constexpr uint32_t kHalf = Shape::kWaveRegisters / 2;
    static constexpr uint32_t kThreads = 2 * kThreadsPerWarpgroup;
    static_assert(sizeof(typename Shape::Accumulators) == 2 * sizeof(Totals), "each warpgroup keeps half of one wave");
    static_assert(Shape::kWavesM * Shape::kWavesN == 1, "half of the columns are half of the registers");

    /// Both directions use the same places: a thread's partner has read one before it writes there.
    struct SharedStorage {
        alignas(1024) float4 sums[kHalf / 4][kThreadsPerWarpgroup];

        static FP8GEMM_DEVICE void initialize() {}
    };

    /// By both warpgroups. The one of the first share is left with the totals of the left half of the columns, the other
    /// with those of the right.
    static FP8GEMM_DEVICE Totals& add(SharedStorage& shared, uint32_t warpgroup,
                                      typename Shape::Accumulators& accumulators) {
        auto& sums = accumulators[0][0];
        const uint32_t thread = threadIdx.x % kThreadsPerWarpgroup;
        const bool is_first = Shape::share_of(warpgroup) == 0;
        if (is_first) {
#pragma unroll
            for (uint32_t i = 0; i < kHalf; i += 4) {
                shared.sums[i / 4][thread] = four_of(&sums[kHalf + i]);
            }
        }
        ptx::named_barrier_sync(kFirstShareGiven, kThreads);
        if (!is_first) {
#pragma unroll
            for (uint32_t i = 0; i < kHalf; i += 4) {
                const float4 given = shared.sums[i / 4][thread];
                shared.sums[i / 4][thread] = four_of(&sums[i]);
                add_four(&sums[i], &sums[kHalf + i], given);
            }
        }
        ptx::named_barrier_sync(kSecondShareGiven, kThreads);
        if (is_first) {
#pragma unroll
            for (uint32_t i = 0; i < kHalf; i += 4) {
                add_four(&sums[i], &sums[i], shared.sums[i / 4][thread]);
            }
        }
        return reinterpret_cast<Totals&>(accumulators);
    }

private:
    static FP8GEMM_DEVICE float4 four_of(const float* sums) { return make_float4(sums[0], sums[1], sums[2], sums[3]); }

    static FP8GEMM_DEVICE void add_four(float* totals, const float* sums, float4 given) {
        totals[0] = sums[0] + given.x;
        totals[1] = sums[1] + given.y;
        totals[2] = sums[2] + given.z;
        totals[3] = sums[3] + given.w;
    }
};

}  // namespace fp8gemm
