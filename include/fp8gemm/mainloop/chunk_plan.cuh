// How long the pieces of straight code are that the main loop goes round in, and how many copies of it there are: all of
// it known when a kernel is compiled.
//
//     K block       0   1   2   3   4   5   6   7   8   9   10  11  12
//     warpgroup 0   [    long      ][    long      ][    long      ][sh]     a short chunk that K ends in stops there
//     warpgroup 1   [short ][    long      ][    long      ][short ][sh]     staggered: it changes at other times
//
// With one wave in flight there is one length, and so there is where a chunk is one turn of the ring. With groups of
// columns, of whose K nothing is known, what no chunk takes is multiplied block by block.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"

namespace fp8gemm {

/// Whether the epilogue has addresses to compute, for which the compiler keeps registers beside the main loop.
template <class Config>
inline constexpr bool kEpilogueHasAddresses =
    Config::kStore == StoreKind::kPredicated || is_read(Config::kC) || is_read(Config::kBias);

/// Waves that a warpgroup has started at a time: as the config says, but where the row scales of B that it keeps, and the
/// addresses of an epilogue that has some, or of other CTAs' barriers, leave no registers for a second one.
template <class Config>
struct WavesInFlight {
private:
    using Shape = TileShape<Config>;
    /// Groups of columns have registers for both (tests/jit/test_grouped.py).
    static constexpr bool kSharesStages = Shape::kSharers > 1 && Config::kGrouping == Grouping::kNone;
    /// Of a thread: the tile's sums, those of two waves, and the scales that it keeps.
    static constexpr uint32_t kRegisters = (Shape::kWavesM + 2) * Shape::kWaveRegisters + Shape::kWaveRegisters / 2;
    static constexpr bool kKeepsAll = Config::kScaling == Scaling::kRow && Shape::kWavesM > 1;
    static constexpr bool kIsCrowded =
        kKeepsAll && (kEpilogueHasAddresses<Config> || kSharesStages) && (kRegisters > 200);

public:
    static constexpr uint32_t kWaves = kIsCrowded ? 1 : Config::kWavesInFlight;
};

/// The chunks of one warpgroup's main loop. `kBorderStep` divides every place of a border of scale blocks in its columns.
template <class Config, uint32_t kBorderStep>
struct ChunkPlan {
private:
    using Shape = TileShape<Config>;

public:
    static constexpr uint32_t kInFlight = WavesInFlight<Config>::kWaves;
    static constexpr uint32_t kWavesPerBlock = Shape::kWavesM * Shape::kWavesN;
    /// Of a product whose K is its group's, nothing is known of how many K blocks there are.
    static constexpr bool kStepsVary = Config::kGrouping == Grouping::kColumns;

private:
    /// Places where a border may lie.
    static constexpr uint32_t kBorders = kScaleBlock / kBorderStep;
    /// Whether a copy of the main loop is for two borders of 128x192 and of 128x160, too, which then have half as many: as
    /// fast, and 128x192 is compiled in two thirds of the time. 192x96 is 2 % slower by it (under load, H200, 2026-11-29).
    /// Where the epilogue has addresses the compiler would keep the ring's stage in vector registers.
    static constexpr bool kIsForTwo = kBorders > 1 && Shape::kWaveN >= 160 && !kEpilogueHasAddresses<Config>;
    /// Copies of the main loop, each for one border or two: see block_scales.cuh.
    static constexpr uint32_t kLoops = kInFlight > 1 ? 1 : kIsForTwo ? kBorders / 2 : minimum(kBorders, 4u);
    /// An epilogue that has addresses to compute moves them up among the accumulators, and spills, where no loop is left
    /// or, with two waves of them, where K ends inside a chunk.
    static constexpr bool kStoresSumsAlone = Config::kScaling == Scaling::kBlock && !kEpilogueHasAddresses<Config>;
    static constexpr bool kEndsAnywhere = kStoresSumsAlone || kWavesPerBlock == 1;
    static constexpr uint32_t kMostOfK = kStoresSumsAlone ? Shape::kNumSteps : ceil_div(Shape::kNumSteps, 2u);
    /// Groups of columns, whose tiles are more to remember, have no registers for chunks beside wide waves and the addresses
    /// of an epilogue that has some.
    static constexpr bool kIsCrowded =
        kStepsVary && Shape::kWaveRegisters > 64 && (is_read(Config::kC) || Config::kStore == StoreKind::kPredicated);
    /// K blocks of a chunk with one wave in flight: at most eight in all copies of the main loop together. The time to compile
    /// grows faster than a chunk, so they are two where there are copies, or where half a tile's columns have a main loop
    /// of their own, unless K has four at most. Up to 85 K blocks that costs no speed (-0.4 to +0.6 %, seven products); from
    /// 120 on it is 1.0 % of 128x160, which keeps four there, and 1.0 to 1.6 of 128x256 with four stages (H200, 2026-11-30).
    static constexpr bool kIsLongCode = Config::kHalfColumns || (kLoops > 1 && !(kIsForTwo && Shape::kNumSteps > 96));
    static constexpr uint32_t kMostOfOne = kIsCrowded                            ? 1
                                           : kIsLongCode && Shape::kNumSteps > 4 ? 2
                                                                                 : minimum(4u, 8 / kLoops);
    /// With two in flight: eight, or four of several waves each. A K block of wide waves with row scales has twice as much
    /// code: six are as fast (128x128, 64x256: -0.6 to +0.2 %; with block scales 128x128 loses 1.0 to 2.4), and with groups of
    /// columns four (-0.8 to +2.2 %; of several waves each three or two lose 1.0 to 1.8, and four of narrow ones 0.5 to 4.5).
    /// One warpgroup alone keeps its turns of a ring of eight (H200, 2026-11-30).
    static constexpr bool kHasLongSteps = Config::kScaling == Scaling::kRow && kWavesPerBlock == 1 &&
                                          Shape::kWaveRegisters >= 64 && Shape::kWarpgroups > 1;
    static constexpr uint32_t kMostOfTwo = kWavesPerBlock > 1 ? 4 : !kHasLongSteps ? 8 : kStepsVary ? 4 : 6;
    static constexpr uint32_t kMost = kInFlight == 1 ? kMostOfOne : kMostOfTwo;
    static constexpr uint32_t kPlain = minimum(kMost, kMostOfK);

    /// Whether a chunk is one turn of the ring, so that a wave's stage is known when the kernel is compiled. Among the tiles
    /// worth compiling only those of narrow waves have such rings; they gain more by it than by chunks of two lengths (2.4 %
    /// of 512x2112x7168 at 128x64, in bursts, H200, 2026-11-25).
    static constexpr bool kTurnsWithRing =
        !kStepsVary && !kHasLongSteps && kInFlight == 2 && Config::kStages == kMost && Shape::kNumSteps % kMost == 0;

public:
    /// Columns among which the borders lie that one copy of the main loop serves.
    static constexpr uint32_t kBorderRange = kScaleBlock / kLoops;
    /// K blocks of straight code: of a long chunk, and of a short one, which may be as long.
    static constexpr uint32_t kLong = kStepsVary || kInFlight > 1 ? kMost
                                      : kEndsAnywhere             ? kPlain
                                                                  : greatest_common_divisor(kPlain, Shape::kNumSteps);
    static constexpr uint32_t kShort = kInFlight == 1 || kTurnsWithRing ? (kStepsVary ? 1 : kLong)
                                       : kHasLongSteps                  ? (kStepsVary ? 1 : 2)
                                                                        : kLong / 2;
    /// K blocks of the last short chunk, if it is not whole.
    static constexpr uint32_t kRest = kStepsVary ? 0 : Shape::kNumSteps % kShort;
    /// Whether there is any long chunk that is not as short.
    static constexpr bool kHasBoth = kShort < kLong && (kStepsVary || kLong <= Shape::kNumSteps);
    /// Whether the stage that a chunk begins with is awaited ahead of it: up to 2.7 % of products whose warpgroups have nothing
    /// in flight behind a chunk, and block scales. Where warpgroups are staggered 128x128 loses 1.1 and 1.8 % by it, 64x256
    /// 1.2, and five weight gradients with row scales 0.2 to 1.0 (H200, 2026-11-29; docs/tuning.md).
    static constexpr bool kAwaitsAhead =
        !kStepsVary && (kInFlight == 1 || kTurnsWithRing) && Config::kScaling == Scaling::kBlock;
    /// Whether the next stage is looked at behind the release of the one before, not beside its multiplication. Where K ends
    /// inside a chunk of tiles with one wave to a K block the compiler otherwise moves the release at a chunk's end behind
    /// the whole promotion, as it may: 128x192 at K = 13440 gains 0.4 % in bursts, 0.1 under load. With more than 64 K
    /// blocks, for 128x160 at 16384 gains 1.4 and 1.5, whatever the reason; up to 64, whether K ends inside a chunk or not,
    /// 128x144 loses 0.7 to 1.3, and others gain nothing (H200, 2026-11-29).
    static constexpr bool kLooksBehind =
        Config::kScaling == Scaling::kBlock && kInFlight == 1 && kWavesPerBlock == 1 && Shape::kNumSteps > 64;
    /// Whether every second warpgroup begins with a short chunk.
    static constexpr bool kStaggers = kHasBoth && kInFlight > 1;

    static_assert(!kStepsVary || Config::kScaling == Scaling::kRow, "block scales are read for a K that is known");
    static_assert(kStepsVary || kLong % kShort == 0, "K ends in a short chunk, whichever a warpgroup begins with");
    static_assert(Shape::kNumSteps <= kThreadsPerWarp || kThreadsPerWarp % kShort == 0,
                  "weight scales advance between short chunks and in the middle of long ones");
};

}  // namespace fp8gemm
