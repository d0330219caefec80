// Thread block clusters: ranks and the cluster-wide barrier.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm::ptx {

/// %cluster_ctarank
FP8GEMM_DEVICE uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// barrier.cluster.arrive + barrier.cluster.wait, by every thread of every CTA of the cluster.
FP8GEMM_DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace fp8gemm::ptx
