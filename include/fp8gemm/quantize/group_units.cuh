// Which rows of which group a warp has, where only the device knows how many there are of each.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/quantize/params.cuh"

namespace fp8gemm {

/// A group, how many rows it has, and which of its units is meant.
struct UnitPlace {
    uint32_t group;
    uint32_t rows_of_group;
    uint32_t unit_of_group;
};

/// A unit is what a warp does at once: up to `kRows` neighbouring rows of a group, in some of their columns. Units are
/// numbered through all groups; in a group those of its first `kRows` rows come first. A whole warp holds one object of
/// this, in which each lane has added up the units of some neighbouring groups.
template <uint32_t kRows>
class GroupUnits {
public:
    /// `units_of_rows` is how many units lie side by side in the same rows. Reads the counts.
    FP8GEMM_DEVICE GroupUnits(const QuantizeParams& params, uint32_t units_of_rows, uint32_t lane)
        : params_(params), units_of_rows_(units_of_rows), groups_of_lane_(ceil_div(params.groups, kLanes)) {
        const uint32_t first = lane * groups_of_lane_;
        const uint32_t last = minimum(first + groups_of_lane_, params.groups);
        uint32_t own = 0;
#pragma unroll 4
        for (uint32_t group = first; group < last; ++group) {
            own += units(rows_of(group));
        }
        end_ = own;
#pragma unroll
        for (uint32_t distance = 1; distance < kLanes; distance *= 2) {
            const uint32_t before = __shfl_up_sync(kAllLanes, end_, distance);
            end_ += lane >= distance ? before : 0;
        }
        begin_ = end_ - own;
    }

    FP8GEMM_DEVICE uint32_t total() const { return __shfl_sync(kAllLanes, end_, kLanes - 1); }

    /// Where a unit below `total` lies. By whole warps, for the same unit.
    FP8GEMM_DEVICE UnitPlace find(uint32_t unit) const {
        const uint32_t owner = __popc(__ballot_sync(kAllLanes, end_ <= unit));  // ends ascend
        uint32_t rest = unit - __shfl_sync(kAllLanes, begin_, owner);
        uint32_t group = owner * groups_of_lane_;
        uint32_t rows = rows_of(group);
        while (rest >= units(rows)) {
            rest -= units(rows);
            rows = rows_of(++group);
        }
        return {group, rows, rest};
    }

private:
    static constexpr uint32_t kLanes = 32;
    static constexpr uint32_t kAllLanes = 0xffffffffu;

    FP8GEMM_DEVICE uint32_t rows_of(uint32_t group) const {
        const int32_t count = params_.counts[group];
        return count < 0 ? 0 : minimum(static_cast<uint32_t>(count), params_.rows);
    }

    FP8GEMM_DEVICE uint32_t units(uint32_t rows) const { return ceil_div(rows, kRows) * units_of_rows_; }

    const QuantizeParams& params_;
    uint32_t units_of_rows_;
    uint32_t groups_of_lane_;
    uint32_t begin_;  ///< the first unit of this lane's groups
    uint32_t end_;    ///< the one past their last
};

}  // namespace fp8gemm
