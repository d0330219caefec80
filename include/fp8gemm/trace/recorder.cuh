// The tracer of an instrumented build: one thread of each role of CTA Config::kTraceCta writes its marks, with the SM's
// clock, to a buffer that the host finds by the name of the variable.
//
// Nothing here branches or synchronises: a mark is a predicated store, so that warps stay converged for WGMMA and the
// order of everything else is as in the normal build.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/trace/tracer.cuh"

namespace fp8gemm {

constexpr uint32_t kTraceMaxWarpgroups = 4;
constexpr uint32_t kTraceRegions = 4 * kTraceMaxWarpgroups;
constexpr uint32_t kTraceSlots = 1u << 14;  ///< marks of one region; the last is that of the end, others are dropped

/// A mark is the clock's low word and a word of activity (4 bits) and number (28 bits).
struct TraceBuffer {
    uint2 marks[kTraceRegions][kTraceSlots];
    uint32_t made[kTraceRegions];  ///< recorded and dropped
};
static_assert(sizeof(TraceBuffer) == 2097216, "fp8gemm/lab/profiling/trace.py lays out this struct byte by byte");

extern "C" __device__ TraceBuffer fp8gemm_trace;
__device__ TraceBuffer fp8gemm_trace;

template <class Config, Track kTrack>
    requires requires { Config::kTraceCta; }
class Tracer<Config, kTrack> {
    static_assert(TileShape<Config>::kWarpgroups <= kTraceMaxWarpgroups, "a warpgroup would have no region");
    static constexpr uint32_t kCountBits = 24;
    static constexpr uint32_t kSilent = 1u << 31;

    /// Region (from kCountBits up) and marks made. One word, because consumers have few registers to spare.
    uint32_t cursor_;

public:
    FP8GEMM_DEVICE Tracer() : cursor_(is_recorded() ? region() << kCountBits : kSilent) {
        mark(Activity::kBegin, nanoseconds());
    }

    Tracer(const Tracer&) = delete;
    Tracer& operator=(const Tracer&) = delete;

    FP8GEMM_DEVICE ~Tracer() {
        mark(Activity::kEnd, nanoseconds());
        if (cursor_ < kSilent) {
            fp8gemm_trace.made[cursor_ >> kCountBits] = made();
        }
    }

    FP8GEMM_DEVICE void mark_tile(TileCoordinate tile) { mark(Activity::kTile, tile); }

    FP8GEMM_DEVICE void mark(Activity activity, uint32_t number) {
        const uint32_t word = static_cast<uint32_t>(activity) | number << 4;
        const uint32_t slot = (cursor_ >> kCountBits) % kTraceRegions * kTraceSlots + minimum(made(), kTraceSlots - 1);
        // NOTE: The buffer is named in here so that its address is made anew at each mark; held, it costs two registers.
        asm volatile(
            "{\n"
            ".reg .pred recorded;\n"
            ".reg .u32 clock;\n"
            ".reg .u64 address;\n"
            "setp.lt.u32 recorded, %0, %1;\n"
            "mov.u64 address, fp8gemm_trace;\n"
            "mad.wide.u32 address, %2, 8, address;\n"
            "mov.u32 clock, %%clock;\n"
            "@recorded st.global.v2.u32 [address], {clock, %3};\n"
            "}" ::"r"(cursor_),
            "n"(kSilent), "r"(slot), "r"(word)
            : "memory");
        ++cursor_;
    }

    FP8GEMM_DEVICE void mark(Activity activity, uint32_t k_block, uint32_t wave) {
        mark(activity, k_block << 8 | wave);
    }

    FP8GEMM_DEVICE void mark(Activity activity, TileCoordinate tile) { mark(activity, tile.m << 14 | tile.n); }

private:
    FP8GEMM_DEVICE uint32_t made() const { return cursor_ % (1u << kCountBits); }

    /// One thread of a consumer warpgroup; of load and store there is only one anyhow.
    FP8GEMM_DEVICE static bool is_recorded() {
        constexpr bool kAlone = kTrack == Track::kLoad || kTrack == Track::kStore;
        return blockIdx.x == Config::kTraceCta && (kAlone || threadIdx.x % kThreadsPerWarpgroup == 0);
    }

    FP8GEMM_DEVICE static uint32_t region() {
        uint32_t warpgroup = 0;
        if constexpr (kTrack == Track::kStore) {
            warpgroup = threadIdx.x / kThreadsPerWarp - 1;
        } else if constexpr (kTrack != Track::kLoad) {
            warpgroup = threadIdx.x / kThreadsPerWarpgroup - 1;
        }
        return static_cast<uint32_t>(kTrack) * kTraceMaxWarpgroups + warpgroup;
    }

    /// %globaltimer: it ticks coarsely, but tells how fast the clock runs.
    FP8GEMM_DEVICE static uint32_t nanoseconds() {
        uint32_t time;
        asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(time)::"memory");
        return time;
    }
};

}  // namespace fp8gemm
