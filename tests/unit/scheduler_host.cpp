// The device scheduler behind C functions, for tests/unit/test_scheduler.py, which appends the table of its Configs:
//     using Walk = ...;  Walk* const kWalks[] = {walk<Config<...>>, ...};
#include "fp8gemm/scheduler/persistent.cuh"

template <unsigned kN_, unsigned kBlockM_, unsigned kBlockN_, unsigned kClusterM_, unsigned kClusterN_, unsigned kBand,
          bool kHalfColumns_>
struct Config {
    static constexpr fp8gemm::uint32_t kN = kN_;
    static constexpr fp8gemm::uint32_t kBlockM = kBlockM_;
    static constexpr fp8gemm::uint32_t kBlockN = kBlockN_;
    static constexpr fp8gemm::uint32_t kClusterM = kClusterM_;
    static constexpr fp8gemm::uint32_t kClusterN = kClusterN_;
    static constexpr fp8gemm::uint32_t kRasterBand = kBand;
    static constexpr bool kHalfColumns = kHalfColumns_;
};

// Writes (m, n, half) of one CTA's tiles: 0 of a whole one, 1 of its left half, 2 of the right. Returns how many there are; at
// most `capacity` are written.
template <class Config>
unsigned walk(unsigned m, unsigned cluster, unsigned num_clusters, unsigned rank, unsigned capacity,
              unsigned* triples) {
    fp8gemm::PersistentSchedule<Config> schedule(m, cluster, num_clusters, rank);
    typename fp8gemm::PersistentSchedule<Config>::Tile tile;
    unsigned count = 0;
    for (; count <= capacity && schedule.next(tile); ++count) {
        if (count < capacity) {
            triples[3 * count] = tile.m;
            triples[3 * count + 1] = tile.n;
            triples[3 * count + 2] = tile.is_half_wide + 2 * tile.cols_before / Config::kBlockN;
        }
    }
    return count;
}

using Walk = unsigned(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned*);
extern Walk* const kWalks[];

extern "C" unsigned schedule_of(unsigned config, unsigned m, unsigned cluster, unsigned num_clusters, unsigned rank,
                                unsigned capacity, unsigned* triples) {
    return kWalks[config](m, cluster, num_clusters, rank, capacity, triples);
}

extern "C" void raster(unsigned first, unsigned count, unsigned num_m, unsigned num_n, unsigned band, unsigned* pairs) {
    for (unsigned i = 0; i < count; ++i) {
        const fp8gemm::TileCoordinate tile = fp8gemm::banded_raster(first + i, num_m, num_n, band);
        pairs[2 * i] = tile.m;
        pairs[2 * i + 1] = tile.n;
    }
}
