// Where a tile's operands and output lie. Roles ask the tile that their schedule gives them, so that one set of roles
// serves single products and grouped ones.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/scheduler/last_round.cuh"
#include "fp8gemm/scheduler/tile_order.cuh"

namespace fp8gemm {

/// A tile of a single product: all places follow from its coordinates.
template <class Config>
struct PlainTile : TileCoordinate, ColumnsOfTile<Config::kHalfColumns> {
    static constexpr bool is_half = false;  ///< see GroupedTile

    FP8GEMM_HOST_DEVICE uint32_t row_of_a() const { return m * Config::kBlockM; }
    FP8GEMM_HOST_DEVICE uint32_t row_of_b() const { return first_col(); }
    /// Of those that are the CTA's; the scales of B are those of its columns.
    FP8GEMM_HOST_DEVICE uint32_t first_col() const { return n * Config::kBlockN + this->cols_before; }
    FP8GEMM_HOST_DEVICE uint32_t row_of_d() const { return m * Config::kBlockM; }
    /// The first column that the CTA writes.
    FP8GEMM_HOST_DEVICE uint32_t col_of_d() const { return first_col(); }
    /// The row of D behind the last that may be written, where A has so many rows.
    FP8GEMM_HOST_DEVICE uint32_t end_of_d(uint32_t rows) const { return rows; }
    /// Of the tile's product, where A has so many.
    FP8GEMM_HOST_DEVICE static constexpr uint32_t rows_of_product(uint32_t rows) { return rows; }
    FP8GEMM_HOST_DEVICE static constexpr uint32_t first_k_block() { return 0; }
    FP8GEMM_HOST_DEVICE static constexpr uint32_t steps() { return TileShape<Config>::kNumSteps; }
    /// Where the map of A's scales has those of the tile's first row and K block.
    FP8GEMM_HOST_DEVICE uint32_t row_of_scales_a() const { return m * Config::kBlockM; }
    FP8GEMM_HOST_DEVICE static constexpr uint32_t block_of_scales_a() { return 0; }
    /// Scales that are loaded before that of the tile's first row.
    FP8GEMM_HOST_DEVICE static constexpr uint32_t skipped_scales_a() { return 0; }
    /// The first 128-row block of the tile's B among all there are scales of.
    FP8GEMM_HOST_DEVICE static constexpr uint32_t first_block_of_b() { return 0; }
};

/// One CTA's part of a tile of which the cluster divides K: a share of the K blocks, and of each warpgroup's columns.
template <class Config>
struct SplitTilePart : PlainTile<Config> {
    uint32_t share;

    FP8GEMM_HOST_DEVICE uint32_t col_of_d() const {
        return this->first_col() + share * TileShape<SummedConfig<Config>>::kWarpgroupCols;
    }
    FP8GEMM_HOST_DEVICE uint32_t first_k_block() const { return share * TileShape<Config>::kNumSteps; }
    FP8GEMM_HOST_DEVICE uint32_t block_of_scales_a() const { return first_k_block(); }
};

/// A tile of one group's product. Its coordinates count from the group's first.
template <class Config>
struct GroupedTile : TileCoordinate, ColumnsOfTile<false> {
    static constexpr bool kOfColumns = Config::kGrouping == Grouping::kColumns;

    uint32_t group;
    uint32_t begin;           ///< of the group: a row of A, or K block
    uint32_t end;             ///< likewise, but of half a tile, where that ends before
    uint32_t first_row_of_d;  ///< of the group
    bool is_half;             ///< whether it is half as high, and the first warpgroup's alone
    uint32_t rows_above;      ///< of a lower half, those of the upper one

    /// The first of the group's.
    FP8GEMM_HOST_DEVICE uint32_t row() const { return m * Config::kBlockM + rows_above; }
    FP8GEMM_HOST_DEVICE uint32_t row_of_a() const { return (kOfColumns ? 0 : begin) + row(); }
    FP8GEMM_HOST_DEVICE uint32_t row_of_b() const {
        return (kOfColumns ? 0 : group * Config::kN) + n * Config::kBlockN;
    }
    FP8GEMM_HOST_DEVICE uint32_t first_col() const { return n * Config::kBlockN; }
    FP8GEMM_HOST_DEVICE uint32_t row_of_d() const { return first_row_of_d + row(); }
    FP8GEMM_HOST_DEVICE uint32_t col_of_d() const { return first_col(); }
    FP8GEMM_HOST_DEVICE uint32_t end_of_d(uint32_t rows) const { return kOfColumns ? first_row_of_d + rows : end; }
    FP8GEMM_HOST_DEVICE uint32_t rows_of_product(uint32_t rows) const { return end_of_d(rows) - first_row_of_d; }
    FP8GEMM_HOST_DEVICE uint32_t first_k_block() const { return kOfColumns ? begin : 0; }
    FP8GEMM_HOST_DEVICE uint32_t steps() const { return kOfColumns ? end - begin : TileShape<Config>::kNumSteps; }
    FP8GEMM_HOST_DEVICE uint32_t row_of_scales_a() const {
        return Config::kGrouping == Grouping::kMasked ? row() : row_of_a() - skipped_scales_a();
    }
    FP8GEMM_HOST_DEVICE uint32_t block_of_scales_a() const {
        return Config::kGrouping == Grouping::kMasked ? group * ceil_div(Config::kK, kScaleBlock) : first_k_block();
    }
    FP8GEMM_HOST_DEVICE uint32_t skipped_scales_a() const {
        return Config::kGrouping == Grouping::kContiguous ? row_of_a() % kScalesOfPiece : 0;
    }
    FP8GEMM_HOST_DEVICE uint32_t first_block_of_b() const {
        return kOfColumns ? 0 : group * ceil_div(Config::kN, kScaleBlock);
    }
};

}  // namespace fp8gemm
