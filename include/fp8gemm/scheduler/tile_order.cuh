// The orders in which tiles are visited: pure functions from an index to a tile.
//
// Tiles that run at the same time should share operands in L2. Walking the tile grid in bands of a few tile rows, down
// each column of the band before the next, makes the tiles in flight a block of about band x (in flight / band): their
// distinct rows of A and of B are then about as few as they can be. Every second band is walked from the right, so that it
// begins with the rows of B that the one before ended with (up to 1 % of products of many bands; H200, 2026-11-26).
//
// Where each cluster computes one tile, tiles of the same rows of B follow each other, so that what few tokens are past a
// tile's width find the weight in L2. As a rule all are in flight there.
#pragma once

#include "fp8gemm/common/math.cuh"

namespace fp8gemm {

struct TileCoordinate {
    uint32_t m;
    uint32_t n;
};

/// The tile of `index` in [0, num_m * num_n), which fits 32 bits. Bands have `band` rows of tiles, or as many as leave
/// their tiles countable in 32 bits. The last two have about as many as each other: one of few rows would share little.
FP8GEMM_HOST_DEVICE TileCoordinate banded_raster(uint32_t index, uint32_t num_m, uint32_t num_n, uint32_t band) {
    // NOTE: Kernels know `num_n` and `band` when they are compiled, so that these two are constants of theirs.
    const uint32_t band_rows = minimum(band, ~uint32_t{0} / num_n);
    const uint32_t tiles_per_band = band_rows * num_n;

    const uint32_t bands = ceil_div(num_m, band_rows);
    const uint32_t before_last_two = bands > 2 ? bands - 2 : 0;
    const uint32_t bands_above = minimum(index / tiles_per_band, before_last_two);
    uint32_t first_m = bands_above * band_rows;
    uint32_t in_band = index - bands_above * tiles_per_band;
    uint32_t rows = band_rows;
    bool from_right = bands_above % 2 != 0;
    if (bands_above == before_last_two) {
        const uint32_t rows_left = num_m - first_m;
        rows = bands == 1 ? rows_left : ceil_div(rows_left, 2u);
        if (in_band >= rows * num_n) {
            first_m += rows;
            in_band -= rows * num_n;
            rows = rows_left - rows;
            from_right = !from_right;
        }
    }
    const uint32_t col = in_band / rows;
    return TileCoordinate{first_m + in_band % rows, from_right ? num_n - 1 - col : col};
}

struct SplitTile {
    TileCoordinate tile;  ///< in tiles
    uint32_t rank;        ///< the CTA's share of K
};

/// What the CTA of an index computes, of ceil(m / block_m) rows of tiles.
template <class Config>
FP8GEMM_HOST_DEVICE SplitTile split_tile(uint32_t index, uint32_t m) {
    const uint32_t num_m = ceil_div(m, Config::kBlockM);
    const uint32_t cluster = index / Config::kSplitK;
    return SplitTile{{cluster % num_m, cluster / num_m}, index % Config::kSplitK};
}

}  // namespace fp8gemm
