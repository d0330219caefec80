// The functions of fp8gemm::ptx that dense products and examples/learn_hopper use, on the host; see hopper.hpp.
#pragma once

#include "arithmetic.hpp"
#include "boxes.hpp"

inline void __syncthreads() {
    emulated::meet(0, emulated::count);
}
inline void __syncwarp() {
    emulated::meet(100 + emulated::current % emulated::count / 32, 32);
}
inline float __shfl_sync(uint32_t, float value, uint32_t lane) {
    std::memcpy(emulated::self().given, &value, 4);
    __syncwarp();
    std::memcpy(&value, emulated::threads[emulated::current / 32 * 32 + lane % 32].given, 4);
    __syncwarp();
    return value;
}

namespace fp8gemm::ptx {

using emulated::at, emulated::barrier_at, emulated::current, emulated::require, emulated::self, emulated::step;

inline uint32_t lane_index() {
    return current % 32;
}
inline uint32_t warp_index() {
    return current % emulated::count / 32;
}
inline uint32_t same_in_warp(uint32_t value) {
    return value;
}
inline bool elect_one() {
    return current % 32 == 5;
}  // which it is, PTX does not say
inline uint32_t and_in_order(uint32_t a, uint32_t b) {
    return a & b;
}
template <class Value>
void compute_here(Value&) {}

template <uint32_t kRegisters>
void decrease_registers() {
    emulated::of_cluster[emulated::rank()].free_registers += emulated::launch_registers() - kRegisters;
    step();
}
template <uint32_t kRegisters>
void increase_registers() {
    const int64_t more = kRegisters - emulated::launch_registers();
    int64_t& free = emulated::of_cluster[emulated::rank()].free_registers;
    emulated::wait_until([&] { return free >= more; });
    free -= more;
}
inline void named_barrier_sync(uint32_t barrier, uint32_t threads) {
    emulated::meet(barrier, threads);
}

inline void wait_for_previous_grids() {}
inline void launch_dependents() {}

inline uint32_t cluster_rank() {
    return emulated::rank();
}
inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - shared_bytes);
}
inline uint32_t cluster_address(const void* place, uint32_t rank) {
    return emulated::in_cta(shared_address(place), rank);
}
inline void cluster_arrive() {
    self().cluster_phase = emulated::cluster_phases;
    emulated::arrive_in_cluster();
    step();
}
inline void cluster_wait() {
    emulated::wait_until([] { return emulated::cluster_phases != self().cluster_phase; });
}
inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    emulated::barriers[emulated::ranked(shared_address(barrier))] = {arrivals, arrivals, 0, 0, current, false};
}
inline void fence_mbarrier_init() {
    for (auto& [address, barrier] : emulated::barriers) {
        barrier.visible |= barrier.initialized_by == current;
    }
}
template <uint32_t kOffset = 0>
inline void mbarrier_arrive(uint32_t address) {
    emulated::Barrier& barrier = barrier_at(address + kOffset);
    require(barrier.pending > 0, "more arrivals than a barrier counts");
    --barrier.pending;
    emulated::complete(barrier);
    step();
}
inline void mbarrier_arrive(uint64_t* barrier) {
    mbarrier_arrive(shared_address(barrier));
}
inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
    barrier_at(shared_address(barrier)).bytes += bytes;
    mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank) {
    mbarrier_arrive(emulated::in_cta(barrier, rank));
}
inline bool mbarrier_test(uint32_t barrier, uint32_t parity) {
    step();
    return (barrier_at(barrier).phases & 1) != parity;
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    emulated::wait_until([&] { return (barrier_at(barrier).phases & 1) != parity; });
    step();
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    mbarrier_wait(shared_address(barrier), parity);
}
inline void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
    mbarrier_wait(barrier, parity);
}

inline void load_global_in_place(bool exists, const float* source, float& value) { value = exists ? *source : 0.0f; }
template <uint32_t kOffset>
void load_shared_if(bool condition, uint32_t address, float& value) {
    if (condition) {
        std::memcpy(&value, at(address + kOffset), 4);
    }
}
inline void store_shared_pair(uint32_t address, float first, float second) {
    emulated::Write write{address, {}, 8};
    const float pair[2] = {first, second};
    std::memcpy(write.bytes, pair, 8);
    self().unfenced.push_back(write);
}
inline void store_async(uint32_t destination, uint32_t barrier, float2 values) {
    require(destination % 8 == 0, "sums for a place that is not aligned");
    barrier_at(barrier);
    emulated::sums_sent.push_back({destination, barrier, 8, {values.x, values.y}});
    step();
}
inline void store_async(uint32_t destination, uint32_t barrier, float4 values) {
    require(destination % 16 == 0, "sums for a place that is not aligned");
    barrier_at(barrier);
    emulated::sums_sent.push_back({destination, barrier, 16, {values.x, values.y, values.z, values.w}});
    step();
}

inline emulated::Map map_of(const TensorMap& map, uint32_t place) {
    emulated::Map read;
    std::memcpy(&read, &map, sizeof(read));
    require(place % (read.swizzle != 0 ? (read.swizzle + 1) * 128 : 128) == 0, "a copy of a place that is not aligned");
    return read;
}
inline void pause(uint32_t) {
    step();
}
inline void prefetch_l2(const void*) {}
inline void prefetch_tensor_map(const TensorMap&) {}
inline void tma_prefetch_2d(const TensorMap& map, uint32_t inner, uint32_t outer) {
    require(emulated::count_box(emulated::brought, map_of(map, 0), inner, outer), "brings a box into L2 twice");
    step();
}
inline void tma_load_2d_multicast(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner,
                                  uint32_t outer, uint16_t ctas) {
    const uint32_t place = shared_address(destination);
    for (uint32_t of = 0; of < emulated::cluster_size; ++of) {
        if (ctas >> of & 1) {
            require(barrier_at(emulated::in_cta(shared_address(barrier), of)).visible,
                    "a copy counts on a barrier that its engine does not know");
        }
    }
    emulated::loads.push_back({map_of(map, place), place, shared_address(barrier), inner, outer, ctas});
    for (uint32_t of = 0; of < emulated::cluster_size; ++of) {
        if (ctas >> of & 1) {
            emulated::for_bytes(emulated::loads.back(), of, [](uint8_t* byte, const uint8_t*) { *byte = 0xff; });
        }
    }
    step();
}
inline void tma_load_2d(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner, uint32_t outer) {
    tma_load_2d_multicast(destination, map, barrier, inner, outer, 1u << emulated::rank());
}
inline uint64_t evict_first_policy() { return 1; }
inline void tma_load_2d(void* place, const TensorMap& map, uint64_t* barrier, uint32_t x, uint32_t y, uint64_t policy) {
    require(policy == evict_first_policy(), "a load with a policy that was not made");
    tma_load_2d(place, map, barrier, x, y);
}
template <bool kAdds = false>
inline void tma_store_2d(const TensorMap& map, const void* source, uint32_t inner, uint32_t outer) {
    const uint32_t place = shared_address(source);
    self().open_stores.push_back({map_of(map, place), place, 0, inner, outer, 1u << emulated::rank(), kAdds});
    if (kAdds) {
        emulated::count_box(emulated::added_to, map_of(map, place), inner, outer);
    }
    step();
}
template <bool kAdds = false>
inline void tma_store_2d(const TensorMap& map, const void* source, uint32_t inner, uint32_t outer, uint64_t policy) {
    require(policy == evict_first_policy(), "a store with a policy that was not made");
    tma_store_2d<kAdds>(map, source, inner, outer);
}
inline void tma_store_commit() {
    self().stores.push_back(std::exchange(self().open_stores, {}));
}
template <uint32_t kLeft = 0>
inline void tma_store_wait_read() {
    for (; self().stores.size() > kLeft; self().stores.pop_front()) {
        for (const emulated::Copy& store : self().stores.front()) {
            emulated::for_bytes(store, emulated::rank(), [&store](const uint8_t* place, uint8_t* target) {
                if (target == nullptr) {
                    return;
                }
                if (!store.adds_floats) {
                    *target = *place;
                } else if (reinterpret_cast<uintptr_t>(target) % sizeof(float) == 0) {
                    float there, piece;
                    std::memcpy(&there, target, sizeof(float));
                    std::memcpy(&piece, place, sizeof(float));
                    there += piece;
                    std::memcpy(target, &there, sizeof(float));
                }
            });
        }
    }
    step();
}
inline void fence_proxy_async() {
    for (const emulated::Write& write : self().unfenced) {
        std::memcpy(at(write.address), write.bytes, write.size);
    }
    self().unfenced.clear();
    step();
}
inline void store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    const uint32_t given[4] = {m0, m1, m2, m3}, first_lane = current / 32 * 32, lane = current % 32;
    std::memcpy(self().given, given, sizeof(given));
    __syncwarp();
    emulated::Write write{address, {}, 16};
    for (uint32_t pair = 0; pair < 4; ++pair) {
        std::memcpy(write.bytes + pair * 4, &emulated::threads[first_lane + lane % 8 * 4 + pair].given[lane / 8], 4);
    }
    self().unfenced.push_back(write);
    __syncwarp();
}

inline void wgmma_fence() {
    self().fenced_waves = true;
}
template <uint32_t kN>
struct Wgmma {
    static void multiply(float (&d)[kN / 2], uint64_t a, uint64_t b) {
        require(self().fenced_waves, "a WGMMA without a fence ahead of it");
        for (float& sum : d) {
            sum = NAN;
        }
        self().open_waves.push_back({d, kN, {a, a + 2, a + 4, a + 6}, {b, b + 2, b + 4, b + 6}});
        step();
    }
};
inline void wgmma_commit() {
    self().waves.push_back(std::move(self().open_waves));
    self().open_waves.clear();
    self().fenced_waves = false;
}
template <uint32_t kPending>
void wgmma_wait() {
    step();
    auto& waves = self().waves;
    while (waves.size() > kPending) {
        for (const emulated::Wave& wave : waves.front()) {
            emulated::compute(wave);
        }
        waves.erase(waves.begin());
    }
    // A warp executes it as one: sync.aligned.
    __syncwarp();
}

}  // namespace fp8gemm::ptx
