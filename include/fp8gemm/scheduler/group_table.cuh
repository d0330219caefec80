// What belongs to each group, and how many tiles come up to its last one: read from device memory when a kernel starts,
// because the host does not know it.
//
// Whatever lies there, no range leaves its matrix: values are clamped, and a range that ends before it begins is empty.
// Groups without tiles have no entry, so that walking the table takes no longer for them.
#pragma once

#include "fp8gemm/common/math.cuh"

namespace fp8gemm {

/// Filled in by the host, for each group: where it begins and ends.
/// NOTE: Volatile, so that L2 is read. With static weights these are read before the grids ahead are waited for: what wrote
/// them has ended, but this SM's L1 may hold what was there before.
struct GroupRanges {
    const volatile int32_t* begins;  ///< null: where the group before ends
    const volatile int32_t* ends;    ///< with Grouping::kMasked how many rows each has
    uint32_t limit;                  ///< rows or columns that there are; with Grouping::kMasked what each has room for
};

struct alignas(16) GroupEntry {
    uint32_t group;
    uint32_t begin;  ///< row of A, or K block
    uint32_t end;
    uint32_t tiles_up_to;  ///< cluster tiles of the group and those before it
};

template <class Config>
struct GroupTable {
    static constexpr bool kOfColumns = Config::kGrouping == Grouping::kColumns;
    /// Where the output accumulates, a group without columns leaves it alone.
    static constexpr bool kSkipsEmpty = !kOfColumns || Config::kC != Addend::kNone;
    static constexpr uint32_t kClusterTileM = Config::kBlockM * Config::kClusterM;
    static constexpr uint32_t kNumN = ceil_div(Config::kN, Config::kBlockN* Config::kClusterN);

    GroupEntry entries[Config::kGroups];  ///< of groups that have tiles, in their order
    uint32_t count;                       ///< how many these are
    uint32_t halves_from;  ///< with Config::kHalves, the first tile that is divided: see `first_of_halves`

    /// What there is to know of one group, with its own tiles alone. `rows` are those of A.
    static FP8GEMM_HOST_DEVICE GroupEntry entry_of(const GroupRanges& ranges, uint32_t rows, uint32_t group) {
        GroupEntry entry{group, 0, 0, 0};
        const uint32_t last = clamped(ranges.ends[group], ranges.limit);
        if constexpr (Config::kGrouping == Grouping::kMasked) {
            entry.begin = group * ranges.limit;
            entry.end = entry.begin + last;
        } else {
            const int32_t first = ranges.begins != nullptr ? ranges.begins[group]
                                  : group == 0             ? 0
                                                           : ranges.ends[group - 1];
            entry.begin = clamped(first, ranges.limit) / kUnit;
            entry.end = maximum(last / kUnit, entry.begin);
        }
        const bool is_empty = entry.end == entry.begin;
        entry.tiles_up_to = kSkipsEmpty && is_empty ? 0 : num_m(entry, rows) * kNumN;
        return entry;
    }

    /// The first tile of the last round, if that has so few that each can be divided between two CTAs; else one behind all.
    /// A round that is the only one is not divided: a CTA's first tile is whole, which OperandLoader relies on.
    static FP8GEMM_HOST_DEVICE uint32_t first_of_halves(uint32_t tiles, uint32_t num_ctas) {
        const uint32_t left = tiles % num_ctas;
        return tiles > num_ctas && left <= num_ctas / 2 ? tiles - left : tiles;
    }

    /// Rows of cluster tiles of a group.
    static FP8GEMM_HOST_DEVICE uint32_t num_m(const GroupEntry& entry, uint32_t rows) {
        return ceil_div(kOfColumns ? rows : entry.end - entry.begin, kClusterTileM);
    }

private:
    static constexpr uint32_t kUnit = kOfColumns ? 128 : 1;  ///< of ranges: columns are counted in K blocks

    static FP8GEMM_HOST_DEVICE uint32_t clamped(int32_t value, uint32_t limit) {
        return value < 0 ? 0 : minimum(static_cast<uint32_t>(value), limit);
    }
};

}  // namespace fp8gemm
