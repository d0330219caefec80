// The schedule of grouped products behind a C function, for tests/unit/test_grouped_schedule.py, which appends the table
// of its Configs:
//     Walk* const kWalks[] = {walk<Config<...>>, ...};
#include "fp8gemm/scheduler/grouped.cuh"

using fp8gemm::Grouping;

template <Grouping kGrouping_, unsigned kGroups_, unsigned kN_, unsigned kK_, unsigned kBlockM_, unsigned kBlockN_,
          unsigned kClusterM_, unsigned kClusterN_, unsigned kBand, bool kAccumulates, bool kHalves_>
struct Config {
    static constexpr Grouping kGrouping = kGrouping_;
    static constexpr fp8gemm::uint32_t kGroups = kGroups_, kN = kN_, kK = kK_, kBlockM = kBlockM_, kBlockN = kBlockN_;
    static constexpr fp8gemm::uint32_t kClusterM = kClusterM_, kClusterN = kClusterN_, kRasterBand = kBand;
    static constexpr fp8gemm::uint32_t kBlockK = 128, kWarpgroupsM = 1, kWarpgroupsN = 1, kWarpgroupsK = 1, kSplitK = 1;
    static constexpr bool kHalves = kHalves_, kHalfColumns = false;
    static constexpr fp8gemm::Addend kC = kAccumulates ? fp8gemm::Addend::kFloat32 : fp8gemm::Addend::kNone;
};

// As mainloop/fill_table.cuh does by many threads.
template <class Config>
void fill(fp8gemm::GroupTable<Config>& table, const fp8gemm::GroupRanges& ranges, unsigned rows,
          unsigned num_clusters) {
    unsigned tiles = 0;
    table.count = 0;
    for (unsigned group = 0; group < Config::kGroups; ++group) {
        fp8gemm::GroupEntry entry = fp8gemm::GroupTable<Config>::entry_of(ranges, rows, group);
        if (entry.tiles_up_to != 0) {
            tiles += entry.tiles_up_to;
            entry.tiles_up_to = tiles;
            table.entries[table.count++] = entry;
        }
    }
    table.halves_from = fp8gemm::GroupTable<Config>::first_of_halves(tiles, num_clusters);
}

template <class Config>
unsigned steps_of(const fp8gemm::GroupedTile<Config>& tile) {
    if constexpr (Config::kBlockM % 64 == 0) {
        return tile.steps();
    } else {  // of the swapped orientation, which asks for no steps
        return 0;
    }
}

// Writes the tiles of a warpgroup of every CTA, one CTA after another, with all that roles ask of a tile, and into `counts`
// how many each has. Stops at `capacity` tiles; returns how many there were.
template <class Config>
unsigned walk(const int* begins, const int* ends, unsigned limit, unsigned rows, unsigned num_clusters,
              unsigned warpgroup, unsigned capacity, unsigned* values, unsigned* counts) {
    static fp8gemm::GroupTable<Config> table;
    fill(table, {begins, ends, limit}, rows, num_clusters);
    unsigned count = 0;
    for (unsigned cluster = 0; cluster < num_clusters; ++cluster) {
        for (unsigned rank = 0; rank < Config::kClusterM * Config::kClusterN; ++rank) {
            fp8gemm::GroupedSchedule<Config> schedule(table, rows, cluster, num_clusters, rank, warpgroup);
            fp8gemm::GroupedTile<Config> tile;
            const unsigned before = count;
            while (count < capacity && schedule.next(tile)) {
                const unsigned all[] = {tile.group,
                                        tile.m,
                                        tile.n,
                                        tile.row_of_a(),
                                        tile.row_of_b(),
                                        tile.row_of_d(),
                                        tile.col_of_d(),
                                        tile.end_of_d(rows),
                                        tile.is_half,
                                        tile.first_k_block(),
                                        steps_of(tile),
                                        tile.row_of_scales_a(),
                                        tile.block_of_scales_a(),
                                        tile.skipped_scales_a(),
                                        tile.first_block_of_b()};
                for (unsigned value : all) {
                    *values++ = value;
                }
                ++count;
            }
            *counts++ = count - before;
        }
    }
    return count;
}

using Walk = unsigned(const int*, const int*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned*, unsigned*);
extern Walk* const kWalks[];

extern "C" unsigned walk_of(unsigned config, const int* begins, const int* ends, unsigned limit, unsigned rows,
                            unsigned num_clusters, unsigned warpgroup, unsigned capacity, unsigned* values,
                            unsigned* counts) {
    return kWalks[config](begins, ends, limit, rows, num_clusters, warpgroup, capacity, values, counts);
}
