// Which boxes of an output kernels bring into L2 ahead, and which L2 then adds to: no result tells.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

namespace emulated {

using Box = std::pair<uint32_t, uint32_t>;  ///< its first column and row

inline std::set<Box> brought, added_to;

/// Of the last run, boxes that were brought and not added to, or the other way round.
inline uint32_t boxes_apart() {
    std::vector<Box> apart;
    std::set_symmetric_difference(brought.begin(), brought.end(), added_to.begin(), added_to.end(),
                                  std::back_inserter(apart));
    return apart.size();
}

}  // namespace emulated
