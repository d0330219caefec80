// What routing uses besides quantisers, on the host: votes and shuffles of a warp, and float operations that stay apart.
#pragma once

#include "quantize.hpp"
#include "shuffles.hpp"

inline uint32_t __shfl_sync(uint32_t, uint32_t value, uint32_t lane) {
    return emulated::exchanged(value)[lane];
}
inline uint32_t __match_any_sync(uint32_t, uint32_t value) {
    const auto values = emulated::exchanged(value);
    uint32_t same = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        same |= uint32_t{values[lane] == value} << lane;
    }
    return same;
}
inline uint32_t __ballot_sync(uint32_t, bool condition) {
    const auto values = emulated::exchanged(condition);
    uint32_t votes = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        votes |= values[lane] << lane;
    }
    return votes;
}
inline uint32_t __popc(uint32_t bits) {
    return static_cast<uint32_t>(__builtin_popcount(bits));
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
