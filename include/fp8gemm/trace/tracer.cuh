// Marks of what a warp role turns to. Only the instrumented build of a kernel records them (trace/recorder.cuh); in every
// other build they are nothing, and leave nothing in the machine code.
#pragma once

#include "fp8gemm/scheduler/tile_order.cuh"

namespace fp8gemm {

/// Whose marks they are. A consumer thread makes those of two tracks. fp8gemm/lab/profiling/trace.py knows the numbers.
enum class Track : uint32_t { kLoad, kMultiply, kEpilogue, kStore };

/// What begins at a mark and lasts until the thread's next one, and what the number beside it counts. K blocks are
/// those of the tile, whoever shares them.
enum class Activity : uint32_t {
    kBegin,       ///< the role; the number is nanoseconds
    kEnd,         ///< nothing: the role is done; nanoseconds
    kTile,        ///< a tile: what is done once for it
    kWaitEmpty,   ///< K block, the first of its stage: load waits for a stage to be empty
    kLoad,        ///< K block
    kWaitFull,    ///< K block: a consumer waits for its stage
    kMultiply,    ///< K block and wave: its WGMMAs are started; the oldest is waited for, its stage handed back
    kPromote,     ///< K block and wave
    kAddShares,   ///< a tile: with K shared or divided, a consumer exchanges sums with others
    kWaitSlot,    ///< part: a consumer waits for a staging slot
    kStage,       ///< part: addition of C and bias, conversion, and staging or the predicated store itself
    kWaitStaged,  ///< part: store waits for a slot to be staged
    kStore,       ///< part: copies are issued and read the slot
};

template <class Config, Track kTrack>
struct Tracer {
    FP8GEMM_DEVICE void mark_tile(TileCoordinate) {}
    FP8GEMM_DEVICE void mark(Activity, uint32_t) {}
    FP8GEMM_DEVICE void mark(Activity, uint32_t, uint32_t) {}
    FP8GEMM_DEVICE void mark(Activity, TileCoordinate) {}
};

}  // namespace fp8gemm
