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

/// barrier.cluster.arrive, by every thread of every CTA of the cluster.
/// NOTE: Relaxed: all that others must see are barriers, which fence_mbarrier_init has made visible. (Of bytes that one
/// expects already it says nothing: what arrives before is counted below zero.) A release at cluster scope is a membar.gl.
FP8GEMM_DEVICE void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// barrier.cluster.wait: until all have arrived. By threads that have arrived themselves.
FP8GEMM_DEVICE void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// mapa: where a place of this CTA's shared memory is in CTA `rank` of this cluster, as an address in shared::cluster.
FP8GEMM_DEVICE uint32_t cluster_address(const void* place, uint32_t rank) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(place)), "r"(rank));
    return address;
}

/// st.async: writes two floats in a CTA of this cluster, and counts their bytes on a barrier of the same CTA.
FP8GEMM_DEVICE void store_async(uint32_t destination, uint32_t barrier, float2 values) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(destination),
        "f"(values.x), "f"(values.y), "r"(barrier)
        : "memory");
}

/// The same for four; the address is a multiple of 16.
FP8GEMM_DEVICE void store_async(uint32_t destination, uint32_t barrier, float4 values) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            destination),
        "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w), "r"(barrier)
        : "memory");
}

}  // namespace fp8gemm::ptx
