// How WGMMA is told where its operands are in shared memory.
#pragma once

#include "fp8gemm/ptx/mbarrier.cuh"
#include "fp8gemm/ptx/wgmma.cuh"

namespace fp8gemm {

/// What to add to a descriptor to move it by `bytes`: the address never carries into the other fields.
///
/// NOTE: Added to all 64 bits, which the assembler does in one instruction (UIADD3.64, UIMAD.WIDE). Added to a 32-bit address,
/// it writes the upper half, a constant, beside it for each operand of each WGMMA: 8 to 13 instructions more in a wave of 90
/// to 140 (docs/tuning.md).
FP8GEMM_DEVICE constexpr uint32_t descriptor_offset(uint32_t bytes) {
    return bytes >> 4;
}

/// The shared-memory matrix descriptor of a K-major operand with 128-byte swizzle (PTX ISA, "Matrix descriptor"):
/// bits 0-13 address / 16; bits 32-45 the distance of 8-row groups / 16; bits 62-63 the swizzle, 1 = 128 bytes.
/// The address of a K-major operand may be advanced inside the 128-byte row to step along K.
FP8GEMM_DEVICE uint64_t matrix_descriptor(const uint8_t* tile) {
    constexpr uint64_t kGroupStride = 8 * 128 / 16;
    constexpr uint64_t kSwizzle128 = 1;
    return (kSwizzle128 << 62) | (kGroupStride << 32) | descriptor_offset(ptx::shared_address(tile));
}

/// The same of another stage, so many bytes being between two.
FP8GEMM_DEVICE uint64_t in_stage(uint64_t descriptor, uint32_t stage, uint32_t stage_bytes) {
    return descriptor + uint64_t{stage} * descriptor_offset(stage_bytes);
}

}  // namespace fp8gemm
