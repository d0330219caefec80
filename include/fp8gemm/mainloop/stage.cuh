// One stage of the operand ring: K blocks of A, of B and of the scales that come with them, and how WGMMA is told where
// the operands are.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/wgmma.cuh"

namespace fp8gemm {

/// The K blocks that the ring holds: one for each share of K in every stage.
template <class Config>
constexpr uint32_t kRingBlocks = Config::kStages * Config::kWarpgroupsK;

/// Scales that are loaded with each K block: those of A's rows and, if B is scaled by rows too, those of B's.
template <class Config, Scaling kScaling = Config::kScaling>
struct ScaleStages {
    static constexpr uint32_t kBytes = Config::kBlockM * sizeof(float);

    alignas(128) float a[kRingBlocks<Config>][Config::kBlockM];
};

template <class Config>
struct ScaleStages<Config, Scaling::kRow> {
    static constexpr uint32_t kBytes = (Config::kBlockM + Config::kBlockN) * sizeof(float);

    alignas(128) float a[kRingBlocks<Config>][Config::kBlockM];
    alignas(128) float b[kRingBlocks<Config>][Config::kBlockN];
};

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
    /// What arrives in one CTA per stage, whoever of the cluster asked for it. Boxes count whole, tails included.
    static constexpr uint32_t kBytes = kStageBytesA + kStageBytesB + kBlocksPerStage * ScaleStages<Config>::kBytes;

    alignas(1024) uint8_t a[kRingBlocks<Config>][kBytesA];
    alignas(1024) uint8_t b[kRingBlocks<Config>][kBytesB];
    ScaleStages<Config> scales;
    BarrierRing<Config::kStages> ring;
};

/// The address field of a matrix descriptor: offsets may be added to it, for it never carries into the other fields.
FP8GEMM_DEVICE uint32_t descriptor_address(const void* tile) {
    return ptx::shared_address(tile) >> 4;
}

/// What to add to an address field to move it by `bytes`.
FP8GEMM_DEVICE constexpr uint32_t descriptor_offset(uint32_t bytes) {
    return bytes >> 4;
}

/// The shared-memory matrix descriptor of a K-major operand with 128-byte swizzle (PTX ISA, "Matrix descriptor"):
/// bits 0-13 address / 16; bits 32-45 the distance of 8-row groups / 16; bits 62-63 the swizzle, 1 = 128 bytes.
/// The address of a K-major operand may be advanced inside the 128-byte row to step along K.
FP8GEMM_DEVICE uint64_t matrix_descriptor(uint32_t address) {
    constexpr uint64_t kGroupStride = 8 * 128 / 16;
    constexpr uint64_t kSwizzle128 = 1;
    return (kSwizzle128 << 62) | (kGroupStride << 32) | address;
}

/// Those of a K block, 32 columns each.
FP8GEMM_DEVICE ptx::Descriptors block_descriptors(uint32_t address) {
    return {matrix_descriptor(address), matrix_descriptor(address + descriptor_offset(32)),
            matrix_descriptor(address + descriptor_offset(64)), matrix_descriptor(address + descriptor_offset(96))};
}

}  // namespace fp8gemm
