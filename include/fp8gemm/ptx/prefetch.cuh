// Asking for data ahead of its use, without waiting for it.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm::ptx {

/// prefetch.global.L2: the line that an address lies in.
FP8GEMM_DEVICE void prefetch_l2(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace fp8gemm::ptx
