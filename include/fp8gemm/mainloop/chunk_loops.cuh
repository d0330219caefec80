// The loops of a consumer's main loop: chunk after chunk, of the lengths that chunk_plan.cuh says.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/mainloop/pipelined.cuh"

namespace fp8gemm {

/// Multiplies a tile whose K is a constant. `Waves` is as for `pipelined`, with a `Chunk` made of its first step and the
/// borders of scale blocks that it serves. `is_behind`: this warpgroup begins with a short chunk.
template <class Chunks, class Waves, class Sums>
FP8GEMM_DEVICE void multiply_chunks(Waves& waves, bool is_behind, Borders borders, Sums& sums) {
    static_assert(!Chunks::kStepsVary, "the last chunk ends where K does");
    static_assert(!Waves::kAwaitsAhead, "nobody waits for the first stage of a chunk");
    using Chunk = typename Waves::Chunk;
    uint32_t k_block = 0;
    bool is_short = is_behind;
#pragma unroll 1
    while (k_block < Waves::kSteps) {
        if constexpr (Chunks::kHasBoth) {
            if (!is_short && k_block + Chunks::kLong <= Waves::kSteps) {
                pipelined<Chunks::kLong, 0>(waves, Chunk{k_block, borders}, sums);
                k_block += Chunks::kLong;
                continue;
            }
        }
        is_short = false;
        pipelined<Chunks::kShort, Chunks::kRest>(waves, Chunk{k_block, borders}, sums);
        k_block += Chunks::kShort;
    }
}

/// The same in chunks of `kLength`, with block scales. `Waves` has, besides, `await(k_block)`, which waits for the stage of a
/// K block that a chunk begins with.
///
/// NOTE: Nothing of a chunk is in flight when it ends, and no other warpgroup is sure to have a wave in flight then: what
/// stands between its last promotion and the next chunk's first WGMMA is lost. So the next stage is awaited ahead of the back
/// edge, behind which whether it was full would have to be remembered; and whether K ends with a chunk is known before it, or
/// said by it. It takes 14 to 36 cycles less of 107 to 185 (docs/tuning.md).
template <uint32_t kLength, class Waves, class Sums>
FP8GEMM_DEVICE void multiply_equal_chunks(Waves& waves, Borders borders, Sums& sums) {
    static_assert(Waves::kAwaitsAhead, "a chunk awaits its first stage itself");
    using Chunk = typename Waves::Chunk;
    constexpr uint32_t kRest = Waves::kSteps % kLength;
    uint32_t k_block = 0;
    waves.await(k_block);
#pragma unroll 1
    for (;;) {
        const bool is_last = kRest == 0 && k_block + kLength >= Waves::kSteps;
        if (pipelined<kLength, kRest>(waves, Chunk{k_block, borders}, sums) || is_last) {
            return;
        }
        k_block += kLength;
        waves.await(k_block);
    }
}

/// Multiplies a tile whose K is its group's: so many `steps`, known to be the same in the warp. What no chunk takes goes
/// block by block. Row scales have no borders.
///
/// NOTE: Loops one behind the other. If one loop chose among chunks, as above, by a number of steps that is no constant, the
/// compiler would not see that all lanes of a warp take the same way. It would keep the ring's stage in vector registers,
/// and move 16 values of a K block to uniform ones (R2UR) between its WGMMAs: 2 to 7 % of the time (H200, 2026-11-26).
/// tests/jit/test_grouped.py looks for them.
template <class Chunks, class Waves, class Sums>
FP8GEMM_DEVICE void multiply_varying(Waves& waves, bool is_behind, uint32_t steps, Sums& sums) {
    static_assert(Chunks::kStepsVary, "of a K that is known, nothing need go block by block");
    static_assert(!Waves::kAwaitsAhead, "nobody waits for the first stage of a chunk");
    using Chunk = typename Waves::Chunk;
    constexpr Borders kWhole{kScaleBlock, kScaleBlock};
    uint32_t k_block = 0;
    if constexpr (Chunks::kStaggers) {
        if (is_behind && Chunks::kShort <= steps) {
            pipelined<Chunks::kShort, 0>(waves, Chunk{0, kWhole}, sums);
            k_block = Chunks::kShort;
        }
    }
#pragma unroll 1
    for (; k_block + Chunks::kLong <= steps; k_block += Chunks::kLong) {
        pipelined<Chunks::kLong, 0>(waves, Chunk{k_block, kWhole}, sums);
    }
    if constexpr (Chunks::kShort > 1) {
        // One turn at most. As a branch it would be one that lanes might take apart, to the compiler.
#pragma unroll 1
        for (; k_block + Chunks::kShort <= steps; k_block += Chunks::kShort) {
            pipelined<Chunks::kShort, 0>(waves, Chunk{k_block, kWhole}, sums);
        }
    }
#pragma unroll 1
    for (; k_block < steps; ++k_block) {
        pipelined<1, 0>(waves, Chunk{k_block, kWhole}, sums);
    }
}

}  // namespace fp8gemm
