// The persistent schedule of grouped products: the tiles of all groups, one group after the other, and within a group as
// those of a single product. The grid is as large as the GPU, and each cluster takes every num_clusters-th cluster tile.
//
// A cluster tile lies in one group, so that what a cluster multicasts is the group's own.
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

public:
    using Tile = GroupedTile<Config>;
    using Table = GroupTable<Config>;

    /// `rows` are those of A. The table need not be filled before the first tile is asked for.
    FP8GEMM_HOST_DEVICE GroupedSchedule(const Table& table, uint32_t rows, uint32_t cluster, uint32_t num_clusters,
                                        uint32_t rank)
        : table_(table), rows_(rows), index_(cluster), num_clusters_(num_clusters), rank_(rank) {}

    /// Gives this CTA's next tile; false when there is none.
    FP8GEMM_HOST_DEVICE bool next(Tile& tile) {
        for (; entry_ < table_.count; ++entry_) {
            const GroupEntry entry = table_.entries[entry_];
            if (index_ < entry.tiles_up_to) {
                tile.group = entry.group;
                tile.begin = entry.begin;
                tile.end = entry.end;
                tile.first_row_of_d = Tile::kOfColumns ? entry.group * rows_ : entry.begin;
                const TileCoordinate cluster_tile = banded_raster(index_ - tiles_before_, Table::num_m(entry, rows_),
                                                                  Table::kNumN, Config::kRasterBand);
                tile.m = cluster_tile.m * Config::kClusterM + rank_ / Config::kClusterN;
                tile.n = cluster_tile.n * Config::kClusterN + rank_ % Config::kClusterN;
                index_ += num_clusters_;
                return true;
            }
            tiles_before_ = entry.tiles_up_to;
        }
        return false;
    }
};

}  // namespace fp8gemm
