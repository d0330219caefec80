// The main loop of half a tile (scheduler/last_round.cuh): each warpgroup has the first of its two waves of columns.
#pragma once

#include "fp8gemm/mainloop/chunk_loops.cuh"

namespace fp8gemm {

/// The first waves of a multiplier, as `pipelined` asks for them: one in flight. (With two, for which half a tile's sums leave
/// registers, stages are handed back later: 1 % slower at 2048x7168x2048, in bursts, H200, 2026-11-29.)
template <class Multiplier>
struct FirstWaves {
    using Flight = typename Multiplier::Flight;
    using Flights = typename Multiplier::Flights;
    using Chunk = typename Multiplier::Chunk;
    static constexpr uint32_t kInFlight = Multiplier::kInFlight;
    static constexpr uint32_t kWavesPerStep = 1;
    static constexpr uint32_t kSteps = Multiplier::kSteps;
    static constexpr bool kPromotionReadsStage = Multiplier::kPromotionReadsStage;
    static constexpr bool kAwaitsAhead = Multiplier::kAwaitsAhead;
    static_assert(kInFlight == 1, "scales advance with the last wave of a chunk");

    /// K blocks of a chunk. Scales of B advance between chunks, every 32 K blocks.
    static constexpr uint32_t kChunk = 2;

    Multiplier& multiplier;

    FP8GEMM_DEVICE void await(uint32_t k_block) { multiplier.await(k_block); }

    template <uint32_t kWaves>
    FP8GEMM_DEVICE void start(uint32_t wave, Chunk chunk, Flights& flights) {
        multiplier.template start<kWaves, kWavesPerStep>(wave, chunk, flights);
    }

    FP8GEMM_DEVICE void release(uint32_t wave, Chunk chunk, const Flights& flights) {
        multiplier.template release<kWavesPerStep>(wave, chunk, flights);
    }

    template <uint32_t kLater, class Sums>
    FP8GEMM_DEVICE void promote(uint32_t wave, Chunk chunk, const Flights& flights, Sums& sums) {
        multiplier.template promote<kLater, kWavesPerStep>(wave, chunk, flights, sums);
    }
};

/// Adds up this warpgroup's part of half a tile, where there are such.
template <bool kThereAre, class Multiplier, class Sums>
FP8GEMM_DEVICE void multiply_first_waves(Multiplier& multiplier, Sums& sums) {
    if constexpr (kThereAre) {
        using Waves = FirstWaves<Multiplier>;
        Waves waves{multiplier};
        multiply_equal_chunks<Waves::kChunk>(waves, Borders{kScaleBlock, kScaleBlock}, sums);
    }
}

}  // namespace fp8gemm
