// What the producer asks TMA for: the boxes of A, of B and of their scales that fill a stage.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fp8gemm/scheduler/tile.cuh"

namespace fp8gemm {

/// The copies into the operand ring of a CTA.
///
/// CTAs of a cluster row need the same rows of A, those of a cluster column the same rows of B. Each loads its part of
/// the common tile and multicasts it, so the L2 is read once for all of them.
///
/// NOTE: Rows of A past the M of a single product, and of B past its N, are not asked for. TMA would fill them with zeros,
/// but takes longer for such a row than for one that it reads: with 64x64 tiles 4096x7168 took 19.5 us for 65 rows and
/// 12.5 us for 128 (H200, 2026-11-22). What is left in their place, be it NaN, reaches only rows and columns of the output
/// that are not stored. A group's are followed by those of the next: of its last tiles the rows that there are are asked for
/// in pieces. So is B of half a tile (scheduler/last_round.cuh).
template <class Config>
class OperandCopies {
    using Shape = TileShape<Config>;
    using Stages = OperandStages<Config>;

    static constexpr uint32_t kPartOfA = Shape::kBlockM / Config::kClusterN;
    static constexpr uint32_t kPartOfB = Shape::kBlockN / Config::kClusterM;
    /// Rows of a piece of A or B, of a tile that has fewer rows than a box; 0 where such tiles are loaded otherwise.
    static constexpr uint32_t kPieceOfA = Config::kPieceOfA, kPieceOfB = Config::kPieceOfB;
    static_assert((kPieceOfA == 0 || Config::kClusterN == 1) && (kPieceOfB == 0 || Config::kClusterM == 1),
                  "what a cluster shares is loaded whole");
    static_assert(!Config::kHalfColumns || kPieceOfB > 0, "half of a tile's B is loaded in pieces");
    /// Whether there are tiles that lie past N, wholly or in part; of groups, the next one's rows follow.
    static constexpr bool kEndsInsideTile = Config::kGrouping == Grouping::kNone && kPieceOfB == 0 &&
                                            Config::kN % (Shape::kBlockN * Config::kClusterN) != 0;
    static constexpr uint16_t kAllOfCluster = (1u << Shape::kSharers) - 1;
    static constexpr uint32_t kBehindK = Shape::kNumKBlocks * Shape::kBlockK;

    /// What a tile's stages hold of an operand.
    struct Rows {
        const TensorMap* map;  ///< whose box is this CTA's part of them, or a piece; null if it has none
        uint32_t missing;      ///< of all the tile's rows, whoever loads them
        uint32_t present;      ///< in pieces, of the others those that are not to be zeros
    };

public:
    /// How a tile's rows of B are asked for: all of them, all and so that they leave L2 first, or those that there are.
    enum class OfB { kWhole, kStreamed, kInPieces };

    struct Operands {
        Rows a;
        Rows b;

        FP8GEMM_DEVICE bool has_b_in_pieces() const { return kPieceOfB > 0 && b.present != Shape::kBlockN; }

        /// That arrive in a stage, the scales included.
        FP8GEMM_DEVICE uint32_t stage_bytes() const {
            return Stages::kBytes - (a.missing + b.missing) * Stages::kRowBytes;
        }
    };

    /// Whether a CTA can have what is missing of a tile's operands be zeros, with no help from another one.
    static constexpr bool kCanZero = Config::kGrouping == Grouping::kNone ? Shape::kSharers == 1 : kPieceOfA > 0;

private:
    const TensorMap& map_a_;
    const TensorMap& map_a_tail_;
    const TensorMap& map_b_;
    const TensorMap& map_b_tail_;
    const TensorMap& map_scales_a_;
    const TensorMap& map_scales_b_;
    Stages& stages_;
    uint32_t m_;
    uint32_t rank_m_;
    uint32_t rank_n_;

public:
    template <class Params>
    FP8GEMM_DEVICE OperandCopies(const Params& params, Stages& stages, uint32_t rank)
        : map_a_(params.a_map),
          map_a_tail_(params.a_tail_map),
          map_b_(params.b_map),
          map_b_tail_(params.b_tail_map),
          map_scales_a_(params.scales_a_map),
          map_scales_b_(params.scales_b_map),
          stages_(stages),
          m_(params.m),
          rank_m_(rank / Config::kClusterN % Config::kClusterM),  // 0 where the cluster divides K
          rank_n_(rank % Config::kClusterN) {}

    /// By one thread, ahead of all loads: the first one that uses a map would wait for it.
    template <class Params>
    static FP8GEMM_DEVICE void prefetch_maps(const Params& params) {
        ptx::prefetch_tensor_map(params.a_map);
        if constexpr (Config::kGrouping == Grouping::kNone) {
            // NOTE: A choice, for a branch in this place changes the compiler's order of the main loop (64x192 tile).
            ptx::prefetch_tensor_map(params.m % kPartOfA == 0 ? params.a_map : params.a_tail_map);
        } else if constexpr (kPieceOfA > 0) {
            ptx::prefetch_tensor_map(params.a_tail_map);
        }
        ptx::prefetch_tensor_map(params.b_map);
        if constexpr ((kEndsInsideTile && Config::kN % kPartOfB != 0) || kPieceOfB > 0) {
            ptx::prefetch_tensor_map(params.b_tail_map);
        }
        ptx::prefetch_tensor_map(params.scales_a_map);
    }

    /// The same of a tile that has all of its rows of B: what is asked for is then known when a kernel is compiled.
    FP8GEMM_DEVICE Operands with_whole_b(Operands operands) const {
        return kPieceOfB > 0 ? Operands{operands.a, whole_boxes().b} : operands;
    }

    /// The same operands, zeros in the place of what is missing.
    FP8GEMM_DEVICE Operands with_zeros(Operands operands) const {
        if constexpr (Config::kGrouping == Grouping::kNone) {
            const Operands whole = whole_boxes();
            return kPieceOfB > 0 ? Operands{whole.a, {operands.b.map, 0, operands.b.present}} : whole;
        }
        if (operands.a.present != 0) {  // else all of the tile is passed over
            operands.a.missing = 0;
        }
        operands.b.missing = 0;
        return operands;
    }

    /// Of a tile. (Columns may end before whole boxes do; TMA fills the rest with zeros.)
    FP8GEMM_DEVICE Operands operands_of(const GroupedTile<Config>& tile) const {
        Operands operands = whole_boxes();
        if constexpr (kPieceOfA > 0) {
            const uint32_t rows = rows_from(tile.row_of_a(), tile.end, Shape::kBlockM);
            operands.a = in_pieces<Shape::kBlockM, kPieceOfA>(map_a_, map_a_tail_, rows);
        }
        if constexpr (kPieceOfB > 0) {
            operands.b = pieces_of_b(tile);
        }
        return operands;
    }

    FP8GEMM_DEVICE Operands operands_of(PlainTile<Config> tile) const {
        const Rows a = rows_of<Shape::kBlockM, kPartOfA>(map_a_, map_a_tail_, tile.row_of_a(), rank_n_, m_);
        if constexpr (kPieceOfB > 0) {
            return {a, pieces_of_b(tile)};
        }
        if constexpr (!kEndsInsideTile) {
            return {a, whole_boxes().b};
        }
        return {a, rows_of<Shape::kBlockN, kPartOfB>(map_b_, map_b_tail_, tile.row_of_b(), rank_m_, Config::kN)};
    }

    /// Asks for all that a step's stage holds, which is empty, and has its barrier expect it. `mark` is called ahead of each
    /// K block of the tile.
    template <OfB kOfB, class Tile, class Mark>
    FP8GEMM_DEVICE void fill(const Tile& tile, const Operands& operands, uint32_t step, uint32_t stage,
                             Mark mark) const {
        uint64_t* full = &stages_.ring.full[stage];
        const uint32_t first = step * Stages::kBlocksPerStage;
        mark(first);
        ptx::mbarrier_arrive_expect_tx(full, operands.stage_bytes());
#pragma unroll
        for (uint32_t share = 0; share < Stages::kBlocksPerStage; ++share) {
            if (share != 0) {
                mark(first + share);
            }
            load_block<kOfB>(tile, operands, first + share, stage * Stages::kBlocksPerStage + share, full);
        }
    }

private:
    FP8GEMM_DEVICE Operands whole_boxes() const { return {{&map_a_, 0, Shape::kBlockM}, {&map_b_, 0, Shape::kBlockN}}; }

    /// So many rows, and what else of the last piece is there to be read.
    template <uint32_t kRows, uint32_t kPiece>
    FP8GEMM_DEVICE static Rows in_pieces(const TensorMap& whole, const TensorMap& piece, uint32_t rows) {
        static_assert(kRows % kPiece == 0 && kPiece % 8 == 0,
                      "pieces are whole rows of the swizzle, and make up a box");
        const uint32_t present = ceil_div(rows, kPiece) * kPiece;
        return {present == kRows ? &whole : &piece, kRows - present, present};
    }

    /// The rows of B that are the columns of a CTA's tile.
    template <class Tile>
    FP8GEMM_DEVICE Rows pieces_of_b(const Tile& tile) const {
        const uint32_t most = tile.is_half_wide ? Shape::kBlockN / 2 : Shape::kBlockN;
        return in_pieces<Shape::kBlockN, kPieceOfB>(map_b_, map_b_tail_, rows_from(tile.first_col(), Config::kN, most));
    }

    /// Of an operand with so many rows, what a tile from `row` on has, of which part `rank` is this CTA's.
    template <uint32_t kRows, uint32_t kPartRows>
    FP8GEMM_DEVICE static Rows rows_of(const TensorMap& whole, const TensorMap& tail, uint32_t row, uint32_t rank,
                                       uint32_t rows) {
        const uint32_t in_part = rows_from(row + rank * kPartRows, rows, kPartRows);
        const TensorMap* map = in_part == kPartRows ? &whole : &tail;
        // Only in a cluster can a whole tile, or a whole part of one, lie past the last row.
        const bool has_none = Shape::kSharers > 1 && in_part == 0;
        return {has_none ? nullptr : map, kRows - rows_from(row, rows, kRows), kRows};
    }

    /// How many of so many rows there are from `row` on, at most `most`.
    FP8GEMM_DEVICE static uint32_t rows_from(uint32_t row, uint32_t rows, uint32_t most) {
        return row < rows ? minimum(rows - row, most) : 0;
    }

    template <OfB kOfB, class Tile>
    FP8GEMM_DEVICE void load_block(const Tile& tile, const Operands& operands, uint32_t block_of_tile, uint32_t slot,
                                   uint64_t* full) const {
        const uint32_t k_block = tile.first_k_block() + block_of_tile;
        const uint32_t k = k_block * Shape::kBlockK;
        const uint32_t row_a = tile.row_of_a();
        const uint32_t row_b = tile.row_of_b();
        ptx::tma_load_2d(stages_.scales.a[slot], map_scales_a_, full, tile.row_of_scales_a(),
                         tile.block_of_scales_a() + block_of_tile);
        if constexpr (Config::kScaling == Scaling::kRow) {
            ptx::tma_load_2d(stages_.scales.b[slot], map_scales_b_, full, row_b, k_block);
        }
        if (kPieceOfA > 0 && operands.a.present != Shape::kBlockM) {
            load_pieces<Shape::kBlockM, kPieceOfA>(stages_.a[slot], operands.a, full, k, row_a);
        } else if (Shape::kSharers == 1 || operands.a.map != nullptr) {
            load_part<Config::kClusterN, kPartOfA>(stages_.a[slot], *operands.a.map, full, k, row_a, rank_n_);
        }
        if constexpr (kOfB == OfB::kStreamed) {
            static_assert(Shape::kSharers == 1, "what is shared has no such copies");
            ptx::tma_load_2d(stages_.b[slot], *operands.b.map, full, k, row_b, ptx::evict_first_policy());
        } else if constexpr (kOfB == OfB::kInPieces) {
            load_pieces<Shape::kBlockN, kPieceOfB>(stages_.b[slot], operands.b, full, k, row_b);
        } else if (Shape::kSharers == 1 || operands.b.map != nullptr) {
            load_part<Config::kClusterM, kPartOfB>(stages_.b[slot], *operands.b.map, full, k, row_b, rank_m_);
        }
    }

    /// Loads those pieces of a tile that are not missing: where its rows have ended zeros, which are what is behind K.
    template <uint32_t kRows, uint32_t kPiece>
    FP8GEMM_DEVICE static void load_pieces(uint8_t* tile, const Rows& rows, uint64_t* full, uint32_t k, uint32_t row) {
#pragma unroll 1
        for (uint32_t first = 0; first < kRows - rows.missing; first += kPiece) {
            ptx::tma_load_2d(tile + first * Shape::kBlockK, *rows.map, full, first < rows.present ? k : kBehindK,
                             row + first);
        }
    }

    /// Loads part `rank` of an operand tile that `kSharers` CTAs have in common.
    template <uint32_t kSharers, uint32_t kPartRows>
    FP8GEMM_DEVICE void load_part(uint8_t* tile, const TensorMap& map, uint64_t* full, uint32_t k, uint32_t row,
                                  uint32_t rank) const {
        if constexpr (kSharers == 1) {
            ptx::tma_load_2d(tile, map, full, k, row);
        } else {
            // With a cluster of two there is one operand in common, and both CTAs take part.
            static_assert(kSharers == Shape::kSharers, "multicast goes to the whole cluster");
            const uint32_t first = rank * kPartRows;
            ptx::tma_load_2d_multicast(tile + first * Shape::kBlockK, map, full, k, row + first, kAllOfCluster);
        }
    }
};

}  // namespace fp8gemm
