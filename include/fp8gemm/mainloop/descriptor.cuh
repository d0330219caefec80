// How WGMMA is told where its operands are in shared memory.
#pragma once

#include "fp8gemm/ptx/mbarrier.cuh"
#include "fp8gemm/ptx/wgmma.cuh"

namespace fp8gemm {

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
