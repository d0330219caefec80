// A role's way through the tiles of its CTA.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm {

/// The tile that a role is at, if there is one more, and the schedule of those behind it.
template <class Schedule>
struct Walk {
    using Tile = typename Schedule::Tile;

    Schedule following;
    Tile tile{};
    bool more = false;

    /// At none yet.
    FP8GEMM_HOST_DEVICE explicit Walk(Schedule schedule) : following(schedule) {}

    FP8GEMM_HOST_DEVICE void advance() { more = following.next(tile); }
};

}  // namespace fp8gemm
