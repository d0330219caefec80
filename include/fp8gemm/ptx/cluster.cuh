// Thread block clusters: ranks and the cluster-wide barrier.
#pragma once

#include "fp8gemm/ptx/mbarrier.cuh"

namespace fp8gemm::ptx {

/// %cluster_ctarank
FP8GEMM_DEVICE uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// barrier.cluster.arrive: what this thread wrote is visible to whoever waits. By every thread of every CTA of the cluster.
FP8GEMM_DEVICE void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/// barrier.cluster.wait: until all have arrived. By threads that have arrived themselves.
FP8GEMM_DEVICE void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// barrier.cluster.arrive + barrier.cluster.wait, by every thread of every CTA of the cluster.
FP8GEMM_DEVICE void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

/// mapa + st.async: writes a float to the place that `destination` is in CTA `rank` of this cluster, and counts its bytes
/// on the barrier there.
FP8GEMM_DEVICE void store_async(float* destination, uint64_t* barrier, uint32_t rank, float value) {
    asm volatile(
        "{\n"
        ".reg .b32 remote, remote_barrier;\n"
        "mapa.shared::cluster.u32 remote, %0, %2;\n"
        "mapa.shared::cluster.u32 remote_barrier, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [remote], %3, [remote_barrier];\n"
        "}" ::"r"(shared_address(destination)),
        "r"(shared_address(barrier)), "r"(rank), "f"(value)
        : "memory");
}

}  // namespace fp8gemm::ptx
