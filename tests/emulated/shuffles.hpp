// What the lanes of a warp tell each other, on the host; behind what has `__syncwarp`.
#pragma once

#include <array>

#include "hopper.hpp"

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

inline uint32_t __shfl_up_sync(uint32_t, uint32_t value, uint32_t distance) {
    const uint32_t lane = emulated::current % 32;
    return emulated::exchanged(value)[lane < distance ? lane : lane - distance];
}
