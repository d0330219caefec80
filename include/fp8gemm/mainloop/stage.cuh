// One stage of the operand ring: K blocks of A, of B and of the scales that come with them.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/mainloop/descriptor.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"

namespace fp8gemm {

/// The K blocks that the ring holds: one for each share of K in every stage.
template <class Config>
constexpr uint32_t kRingBlocks = Config::kStages * Config::kWarpgroupsK;

/// Scales of A's rows that are loaded with each K block. A box may not begin inside 16 bytes of a matrix (on an H200 that
/// ends in an illegal instruction), and a group of rows begins anywhere: of up to three scales ahead there is no use.
template <class Config>
constexpr uint32_t kScalesOfA = Config::kBlockM + (Config::kGrouping == Grouping::kContiguous ? kScalesOfPiece : 0);

/// The same in whole 128 bytes, since TMA writes to no other places.
template <class Config>
constexpr uint32_t kScalesOfAStride = ceil_div(kScalesOfA<Config>, 32u) * 32;

/// Scales that are loaded with each K block: those of A's rows.
template <class Config>
struct ScalesOfAStages {
    static constexpr uint32_t kBytes = kScalesOfA<Config> * sizeof(float);

    alignas(128) float a[kRingBlocks<Config>][kScalesOfAStride<Config>];
};

/// And, if B is scaled by rows too, those of B's.
template <class Config>
struct RowScaleStages {
    static constexpr uint32_t kBytes = (Config::kBlockM + Config::kBlockN) * sizeof(float);

    alignas(128) float a[kRingBlocks<Config>][Config::kBlockM];
    alignas(128) float b[kRingBlocks<Config>][Config::kBlockN];
};

template <class Config>
using ScaleStages = Conditional<Config::kScaling == Scaling::kRow, RowScaleStages<Config>, ScalesOfAStages<Config>>;

/// Operand ring of a CTA, with its barriers. Rows of a and b are 128 bytes, written by TMA with the 128-byte swizzle, which
/// repeats every 8 rows; so each tile starts on a 1024-byte boundary.
template <class Config>
struct OperandStages {
    using Shape = TileShape<Config>;
    static constexpr uint32_t kBlocksPerStage = Config::kWarpgroupsK;
    static constexpr uint32_t kBytesA = Shape::kBlockM * Shape::kBlockK;
    static constexpr uint32_t kBytesB = Shape::kBlockN * Shape::kBlockK;
    static constexpr uint32_t kStageBytesA = kBlocksPerStage * kBytesA;
    static constexpr uint32_t kStageBytesB = kBlocksPerStage * kBytesB;
    /// What arrives in one CTA per stage with whole tiles of A and B, whoever of the cluster asked for it. What of a box
    /// lies outside its matrix counts too.
    static constexpr uint32_t kBytes = kStageBytesA + kStageBytesB + kBlocksPerStage * ScaleStages<Config>::kBytes;
    /// Of that, what a row of either takes.
    static constexpr uint32_t kRowBytes = kBlocksPerStage * Shape::kBlockK;

    alignas(1024) uint8_t a[kRingBlocks<Config>][kBytesA];
    alignas(1024) uint8_t b[kRingBlocks<Config>][kBytesB];
    ScaleStages<Config> scales;
    BarrierRing<Config::kStages> ring;
};

}  // namespace fp8gemm
