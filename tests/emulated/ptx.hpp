// The functions of fp8gemm::ptx that examples/learn_hopper uses, on the host; see hopper.hpp.
#pragma once

#include "hopper.hpp"

inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline void __syncthreads() {
    emulated::meet(0, emulated::count);
}
inline void __syncwarp() {
    emulated::meet(100 + emulated::current / 32, 32);
}

namespace fp8gemm::ptx {

using emulated::at, emulated::barrier_at, emulated::current, emulated::require, emulated::self, emulated::step;

inline uint32_t lane_index() {
    return current % 32;
}
inline uint32_t warp_index() {
    return current / 32;
}
inline bool elect_one() {
    return current % 32 == 5;
}  // which it is, PTX does not say
inline uint32_t and_in_order(uint32_t a, uint32_t b) {
    return a & b;
}

template <uint32_t kRegisters>
void decrease_registers() {
    emulated::free_registers += int64_t{emulated::kLaunchRegisters} - kRegisters;
    step();
}
template <uint32_t kRegisters>
void increase_registers() {
    constexpr int64_t kMore = int64_t{kRegisters} - emulated::kLaunchRegisters;
    emulated::wait_until([&] { return emulated::free_registers >= kMore; });
    emulated::free_registers -= kMore;
}
inline void named_barrier_sync(uint32_t barrier, uint32_t threads) {
    emulated::meet(barrier, threads);
}

inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - shared_bytes);
}
inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    emulated::barriers[shared_address(barrier)] = {arrivals, arrivals, 0, 0};
}
inline void fence_mbarrier_init() {
    emulated::barriers_visible = true;
}
inline void mbarrier_arrive(uint32_t address) {
    emulated::Barrier& barrier = barrier_at(address);
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
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    const uint32_t address = shared_address(barrier);
    barrier_at(address);
    emulated::wait_until([&] { return (emulated::barriers[address].phases & 1) != parity; });
    step();
}

inline void tma_load_2d(void* destination, const TensorMap& map, uint64_t* barrier, uint32_t inner, uint32_t outer) {
    const uint32_t place = shared_address(destination);
    require(emulated::barriers_visible, "a copy counts on a barrier of which the copy engine does not know");
    require(place % (map.swizzled != 0 ? 1024 : 128) == 0, "a copy to a place that is not aligned");
    barrier_at(shared_address(barrier));
    emulated::loads.push_back({map, place, shared_address(barrier), inner, outer});
    emulated::for_bytes(emulated::loads.back(), [](uint8_t* byte, const uint8_t*) { *byte = 0xff; });
    step();
}
inline void tma_store_2d(const TensorMap& map, const void* source, uint32_t inner, uint32_t outer) {
    const uint32_t place = shared_address(source);
    require(place % (map.swizzled != 0 ? 1024 : 128) == 0, "a bulk store from a place that is not aligned");
    self().open_stores.push_back({map, place, 0, inner, outer});
    step();
}
inline void tma_store_commit() {
    self().stores.insert(self().stores.end(), self().open_stores.begin(), self().open_stores.end());
    self().open_stores.clear();
}
inline void tma_store_wait_read() {
    for (const emulated::Copy& store : self().stores) {
        emulated::for_bytes(store, [](const uint8_t* place, uint8_t* target) {
            if (target != nullptr) {
                *target = *place;
            }
        });
    }
    self().stores.clear();
    step();
}
inline void fence_proxy_async() {
    for (const emulated::Write& write : self().unfenced) {
        std::memcpy(at(write.address), write.bytes, sizeof(write.bytes));
    }
    self().unfenced.clear();
    step();
}
inline void store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    const uint32_t given[4] = {m0, m1, m2, m3}, first_lane = current / 32 * 32, lane = current % 32;
    std::memcpy(self().given, given, sizeof(given));
    __syncwarp();
    emulated::Write write{address, {}};
    for (uint32_t pair = 0; pair < 4; ++pair) {
        std::memcpy(write.bytes + pair * 4, &emulated::threads[first_lane + lane % 8 * 4 + pair].given[lane / 8], 4);
    }
    self().unfenced.push_back(write);
    __syncwarp();
}

inline uint32_t pack_bfloat16(float low, float high) {
    const auto rounded = [](float value) {  // to nearest even; of finite values, and infinite ones
        const uint32_t bits = __float_as_uint(value);
        return value != value ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return rounded(low) | rounded(high) << 16;
}
inline void fma_in_order(float scale, float product, float& sum) {
    sum = std::fma(scale, product, sum);
}

struct Descriptors {
    uint64_t k0, k32, k64, k96;
};
inline void wgmma_fence() {
    self().fenced_waves = true;
}
template <uint32_t kN>
struct Wgmma {
    static void multiply(float (&d)[kN / 2], Descriptors a, Descriptors b) {
        require(self().fenced_waves, "a WGMMA without a fence ahead of it");
        for (float& sum : d) {
            sum = NAN;
        }
        self().open_waves.push_back({d, kN, {a.k0, a.k32, a.k64, a.k96}, {b.k0, b.k32, b.k64, b.k96}});
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
