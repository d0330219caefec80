// Which boxes of an output kernels bring into L2 ahead, and which L2 then adds to: no result tells.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <tuple>
#include <vector>

#include "hopper.hpp"

namespace emulated {

using Box = std::tuple<uint64_t, uint32_t, uint32_t>;  ///< of which tensor; its first column and row

inline std::set<Box> brought, added_to;

/// Counts a box that begins inside its tensor. Whether it is there for the first time.
inline bool count_box(std::set<Box>& boxes, const Map& map, uint32_t inner, uint32_t outer) {
    return inner >= map.inner || outer >= map.outer || boxes.insert({map.base, inner, outer}).second;
}

/// Of the last run, boxes that were brought and not added to, or the other way round.
inline uint32_t boxes_apart() {
    std::vector<Box> apart;
    std::set_symmetric_difference(brought.begin(), brought.end(), added_to.begin(), added_to.end(),
                                  std::back_inserter(apart));
    return apart.size();
}

}  // namespace emulated
