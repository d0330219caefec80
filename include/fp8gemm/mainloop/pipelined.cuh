// The order in which a consumer goes through the waves of a chunk of K, whatever they are made of.
//
// Two waves are in flight where registers allow it: while one is promoted the tensor cores work on the next. A chunk of
// four K blocks, with one wave to each:
//
//     tensor cores     [=== wave 0 ===][=== wave 1 ===][=== wave 2 ===][=== wave 3 ===]
//     this warpgroup   F0 S0 F1 S1     W0 R0 P0 F2 S2  W1 R1 P1 F3 S3  W2 R2 P2        W3 R3 P3   then the next chunk
//
//     Fi  waits until the stage of wave i is full        Wi  waits for wave i; the one behind it goes on
//     Si  starts its WGMMAs, and loads its scales        Ri  hands its stage back (what it waits for: release.cuh)
//                                                        Pi  promotes it, beside the WGMMAs of wave i + 1; ahead of Ri
//                                                            where it reads scales of B's rows from the stage
//
// With one in flight it is F0 S0 W0 R0 P0 F1..., and the WGMMAs of the other warpgroups fill the gap, where there are any.
#pragma once

#include "fp8gemm/ptx/wgmma.cuh"

namespace fp8gemm {

/// Waits for a wave behind which `kLater` have been started. Its stage is handed back first, for its sums are in registers,
/// unless promotion reads it.
template <uint32_t kLater, class Waves, class Chunk, class Flights, class Sums>
FP8GEMM_DEVICE void finish_wave(Waves& waves, uint32_t wave, Chunk chunk, const Flights& flights, Sums& sums) {
    ptx::wgmma_wait<kLater>();
    if constexpr (!Waves::kPromotionReadsStage) {
        waves.release(wave, chunk, flights);
    }
    waves.template promote<kLater>(wave, chunk, flights, sums);
    if constexpr (Waves::kPromotionReadsStage) {
        waves.release(wave, chunk, flights);
    }
}

/// Multiplies the waves of `kLength` steps of K, `Waves::kInFlight` of them in flight at a time: starts each, and finishes
/// it when the others that may be in flight have been started behind it. None is left in flight. Where a chunk has no
/// more than `kRest` steps before K ends, it stops there, and says that. All is unrolled: `wave`, counted from the chunk's
/// first, is a constant.
///
/// `Waves` has, besides `kInFlight`, `kSteps` of all K, `kWavesPerStep`, whether `kPromotionReadsStage`, and a `Flight` for
/// each wave that is in flight,
///     start<kWaves>(wave, chunk, flights)          waits for the stage, unless that of the chunk's first step has been
///                                                  awaited, commits WGMMAs as one group, loads scales ahead
///     release(wave, chunk, flights)                hands the stage back, with the last wave that reads it, and with one wave
///                                                  in flight looks up weight scales for the next step's `start`
///     promote<kLater>(wave, chunk, flights, sums)  adds the block sums, times the scales, and loads some of the next wave's, if
///                                                  one has been started behind
///
/// NOTE: Where K ends is compared here. As a function of `Waves` it gives kernels other registers (64x64-k2, 1D1D).
template <uint32_t kLength, uint32_t kRest, class Waves, class Chunk, class Sums>
FP8GEMM_DEVICE bool pipelined(Waves& waves, Chunk chunk, Sums& sums) {
    constexpr uint32_t kInFlight = Waves::kInFlight;
    constexpr uint32_t kWaves = kLength * Waves::kWavesPerStep;
    constexpr uint32_t kWavesOfRest = kRest * Waves::kWavesPerStep;
    static_assert(kInFlight == 1 || kInFlight == 2, "at most one is in flight when there are no more to start");
    typename Waves::Flight flights[kInFlight];
#pragma unroll
    for (uint32_t wave = 0; wave < kWaves; ++wave) {
        if (wave != 0 && wave == kWavesOfRest && chunk.first_step + kRest == Waves::kSteps) {
            if constexpr (kInFlight > 1) {
                finish_wave<0>(waves, wave - 1, chunk, flights, sums);
            }
            return true;
        }
        waves.template start<kWaves>(wave, chunk, flights);
        if (wave + 1 >= kInFlight) {
            finish_wave<kInFlight - 1>(waves, wave + 1 - kInFlight, chunk, flights, sums);
        }
    }
    if constexpr (kInFlight > 1) {
        finish_wave<0>(waves, kWaves - 1, chunk, flights, sums);
    }
    return false;
}

}  // namespace fp8gemm
