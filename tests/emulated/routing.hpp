// What routing uses besides quantisers, on the host: votes and shuffles of a warp, and float operations that stay apart.
#pragma once

#include "quantize.hpp"

namespace emulated {

/// What each lane of the warp gives, to all of them. Nobody goes on before everybody has read.
inline std::array<uint32_t, 32> exchanged(uint32_t value) {
    self().given[0] = value;
    __syncwarp();
    std::array<uint32_t, 32> values;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        values[lane] = threads[current / 32 * 32 + lane].given[0];
    }
    __syncwarp();
    return values;
}

}  // namespace emulated

inline uint32_t __shfl_sync(uint32_t, uint32_t value, uint32_t lane) {
    return emulated::exchanged(value)[lane];
}
inline uint32_t __shfl_up_sync(uint32_t, uint32_t value, uint32_t distance) {
    const uint32_t lane = emulated::current % 32;
    return emulated::exchanged(value)[lane < distance ? lane : lane - distance];
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
