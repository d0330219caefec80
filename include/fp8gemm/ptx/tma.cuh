// The bulk tensor copy engine (TMA). Every function here is for one elected thread.
#pragma once

#include "fp8gemm/ptx/mbarrier.cuh"

namespace fp8gemm::ptx {

/// prefetch.tensormap
FP8GEMM_DEVICE void prefetch_tensor_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// cp.async.bulk.tensor.2d global -> shared of this CTA; the bytes are counted on `barrier`.
/// `inner` and `outer` are element coordinates; what lies outside the tensor arrives as zeros and is counted too.
FP8GEMM_DEVICE void tma_load_2d(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner,
                                uint32_t outer) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
            "r"(shared_address(destination)),
        "l"(&map), "r"(shared_address(barrier)), "r"(inner), "r"(outer)
        : "memory");
}

/// createpolicy.fractional.L2::evict_first: for what is read once, so that it does not push out what is read again.
FP8GEMM_DEVICE uint64_t evict_first_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/// The same with .L2::cache_hint.
FP8GEMM_DEVICE void tma_load_2d(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner,
                                uint32_t outer, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(destination)),
        "l"(&map), "r"(shared_address(barrier)), "r"(inner), "r"(outer), "l"(policy)
        : "memory");
}

/// cp.async.bulk.tensor.3d global -> shared of this CTA.
FP8GEMM_DEVICE void tma_load_3d(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner,
                                uint32_t middle, uint32_t outer) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(shared_address(destination)),
        "l"(&map), "r"(shared_address(barrier)), "r"(inner), "r"(middle), "r"(outer)
        : "memory");
}

/// The same with .L2::cache_hint.
FP8GEMM_DEVICE void tma_load_3d(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner,
                                uint32_t middle, uint32_t outer, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(destination)),
        "l"(&map), "r"(shared_address(barrier)), "r"(inner), "r"(middle), "r"(outer), "l"(policy)
        : "memory");
}

/// The two-dimensional copy with .multicast::cluster: the box lands at the same offset of every CTA whose bit is set in
/// `mask`, and is counted on each one's own barrier.
FP8GEMM_DEVICE void tma_load_2d_multicast(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner,
                                          uint32_t outer, uint16_t mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(destination)),
        "l"(&map), "r"(shared_address(barrier)), "r"(inner), "r"(outer), "h"(mask)
        : "memory");
}

/// cp.async.bulk global -> shared of this CTA, without a tensor map; `bytes` are counted on `barrier`.
/// Both addresses and the number of bytes are multiples of 16.
FP8GEMM_DEVICE void bulk_load(void* destination, const void* source, uint64_t* barrier, uint32_t bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(destination)),
                 "l"(source), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/// cp.async.bulk.prefetch.tensor.2d: brings a box into L2; what lies outside the tensor is not read.
FP8GEMM_DEVICE void tma_prefetch_2d(const TensorMap& map, uint32_t inner, uint32_t outer) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(inner), "r"(outer)
                 : "memory");
}

/// cp.async.bulk.tensor.2d shared -> global, or cp.reduce.async.bulk.tensor.2d .add; what lies outside the tensor is not
/// written. L2 adds what is of the map's type, rounded to nearest even.
template <bool kAdds = false>
FP8GEMM_DEVICE void tma_store_2d(const TensorMap& map, const void* source, uint32_t inner, uint32_t outer) {
    if constexpr (kAdds) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
            "r"(shared_address(source)), "r"(inner), "r"(outer)
            : "memory");
    } else {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
                     "r"(shared_address(source)), "r"(inner), "r"(outer)
                     : "memory");
    }
}

/// The same with .L2::cache_hint.
template <bool kAdds = false>
FP8GEMM_DEVICE void tma_store_2d(const TensorMap& map, const void* source, uint32_t inner, uint32_t outer,
                                 uint64_t policy) {
    if constexpr (kAdds) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint"
            " [%0, {%2, %3}], [%1], %4;" ::"l"(&map),
            "r"(shared_address(source)), "r"(inner), "r"(outer), "l"(policy)
            : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;" ::"l"(
                &map),
            "r"(shared_address(source)), "r"(inner), "r"(outer), "l"(policy)
            : "memory");
    }
}

/// cp.async.bulk.commit_group
FP8GEMM_DEVICE void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// cp.async.bulk.wait_group.read: all stores of this thread but those of its last `kLeft` groups have read their shared
/// memory, which may be written again.
template <uint32_t kLeft = 0>
FP8GEMM_DEVICE void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

/// fence.proxy.async: ordinary writes of this thread to shared memory become visible to TMA and WGMMA.
FP8GEMM_DEVICE void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fp8gemm::ptx
