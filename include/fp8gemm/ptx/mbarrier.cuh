// mbarrier: the barrier in shared memory that counts arrivals and, for the copy engine, bytes.
#pragma once

#include "fp8gemm/ptx/memory.cuh"

namespace fp8gemm::ptx {

/// mbarrier.init
FP8GEMM_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/// fence.mbarrier_init: makes initialised barriers visible to the cluster and to the copy engine.
FP8GEMM_DEVICE void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// mbarrier.arrive on a barrier of this CTA, `kOffset` bytes behind an address.
template <uint32_t kOffset = 0>
FP8GEMM_DEVICE void mbarrier_arrive(uint32_t address) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0 + %1];" ::"r"(address), "n"(kOffset) : "memory");
}

FP8GEMM_DEVICE void mbarrier_arrive(uint64_t* barrier) {
    mbarrier_arrive(shared_address(barrier));
}

/// mapa + mbarrier.arrive on the same barrier, by its address here, of CTA `rank` of this cluster (which may be this one).
/// NOTE: Release at CTA scope. It says "I have finished reading"; there are no writes to make visible, and the release
/// at cluster scope that they would need is a membar.gl here, which cost a third of the speed (4096x7168x16384).
FP8GEMM_DEVICE void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cta.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

/// mbarrier.arrive.expect_tx: one arrival, and `bytes` more for the copy engine to deliver before the phase ends.
FP8GEMM_DEVICE void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/// mbarrier.try_wait.parity, repeated until the phase of the given parity has completed.
FP8GEMM_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

FP8GEMM_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    mbarrier_wait(shared_address(barrier), parity);
}

/// The same where other CTAs of the cluster wrote what the barrier counted.
FP8GEMM_DEVICE void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

/// mbarrier.test_wait.parity: whether the phase of the given parity has completed, at once.
FP8GEMM_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

}  // namespace fp8gemm::ptx
