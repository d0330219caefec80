// The persistent schedule of grouped products: the tiles of all groups, one group after the other, and within a group as
// those of a single product. The grid is as large as the GPU, and each cluster takes every num_clusters-th cluster tile.
//
// A cluster tile lies in one group, so that what a cluster multicasts is the group's own.
//
// With Config::kHalves, where at most half of the CTAs have a tile in the last round, each of these tiles is divided between
// two. Both have as many rows as a warpgroup of the tile; the first one multiplies them, and the second has no more tiles.
// With seven CTAs and nine tiles:
//
//     CTA            0     1     2     3     4     5     6
//     round 0        0     1     2     3     4     5     6
//     round 1        7a    7b    8a    8b
#pragma once

#include "fp8gemm/scheduler/group_table.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

template <class Config>
class GroupedSchedule {
    const GroupTable<Config>& table_;
    uint32_t rows_;
    uint32_t index_;
    uint32_t num_clusters_;
    uint32_t rank_;
    uint32_t entry_ = 0;
    uint32_t tiles_before_ = 0;  ///< cluster tiles of the groups before that of the entry
    bool takes_halves_;          ///< whether tiles of the last round that are divided are this role's too

public:
    using Tile = GroupedTile<Config>;
    using Table = GroupTable<Config>;

    /// For a role of consumer `warpgroup`. `rows` are those of A. The table need not be filled before the first tile is asked
    /// for.
    FP8GEMM_HOST_DEVICE GroupedSchedule(const Table& table, uint32_t rows, uint32_t cluster, uint32_t num_clusters,
                                        uint32_t rank, uint32_t warpgroup)
        : table_(table),
          rows_(rows),
          index_(cluster),
          num_clusters_(num_clusters),
          rank_(rank),
          takes_halves_(warpgroup == 0) {}

    /// Gives this CTA's next tile; false when there is none.
    FP8GEMM_HOST_DEVICE bool next(Tile& tile) {
        uint32_t index = index_;
        uint32_t half = 0;
        tile.is_half = false;
        if constexpr (Config::kHalves) {
            if (index >= table_.halves_from) {
                if (!takes_halves_) {
                    return false;
                }
                const uint32_t halves_before = index - table_.halves_from;
                index = table_.halves_from + halves_before / 2;
                half = halves_before % 2;
                tile.is_half = true;
            }
        }
        for (; entry_ < table_.count; ++entry_) {
            const GroupEntry entry = table_.entries[entry_];
            if (index < entry.tiles_up_to) {
                tile.group = entry.group;
                tile.begin = entry.begin;
                tile.end = entry.end;
                tile.first_row_of_d = Tile::kOfColumns ? entry.group * rows_ : entry.begin;
                const TileCoordinate cluster_tile =
                    banded_raster(index - tiles_before_, Table::num_m(entry, rows_), Table::kNumN, Config::kRasterBand);
                tile.m = cluster_tile.m * Config::kClusterM + rank_ / Config::kClusterN;
                tile.n = cluster_tile.n * Config::kClusterN + rank_ % Config::kClusterN;
                tile.rows_above = half * (Config::kBlockM / 2);
                index_ += num_clusters_;
                if constexpr (Config::kHalves) {
                    if (tile.is_half) {
                        tile.end = minimum(entry.end, tile.row_of_a() + Config::kBlockM / 2);
                        return tile.row_of_a() < entry.end;
                    }
                }
                return true;
            }
            tiles_before_ = entry.tiles_up_to;
        }
        return false;
    }
};

}  // namespace fp8gemm
