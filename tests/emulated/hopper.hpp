// Hopper on the host, as far as dense products and examples/learn_hopper use it: each thread of a cluster is a fiber, and
// each function of fp8gemm::ptx does what the PTX ISA says, at a bad moment: warps run in random order and stop at any of
// them; copies and sums sent to a CTA arrive in any order, and what copies will overwrite is gone when they are asked for;
// a WGMMA and a bulk store read when they are waited for, and what stmatrix wrote only behind a proxy fence.
// An address in shared memory is an offset; ahead of it may be the rank of a CTA and one, as mapa gives it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ucontext.h>
#define FP8GEMM_DEVICE inline
#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define threadIdx (emulated::Index{emulated::current % emulated::count})
#define blockIdx (emulated::Index{emulated::cta + emulated::rank()})
#define gridDim (emulated::Index{emulated::ctas})
#define shared_bytes (emulated::memory[emulated::rank()])

#include "fp8gemm/common/types.cuh"

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct uint4 {
    uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

namespace emulated {

constexpr uint32_t kMostCtas = 4, kSharedBytes = 227 * 1024;
alignas(1024) inline uint8_t memory[kMostCtas][kSharedBytes];

struct Index {
    uint32_t x;
};
/// What tests/emulated/__init__.py writes in the place of a CUtensorMap. A row of a swizzled box is 1 + `swizzle` times 16
/// bytes long.
struct Map {
    uint64_t base, inner, outer, stride_bytes;
    uint32_t element_bytes, box_inner, box_outer, swizzle;
};
/// To, or from, the same place of every CTA whose bit is set; a load counts on the same barrier of each.
struct Copy {
    Map map;
    uint32_t place, barrier, inner, outer, ctas, adds_floats;
};
struct Sums {
    uint32_t place, barrier, bytes;
    float values[4];
};
struct Wave {
    float* sums;
    uint32_t cols;
    uint64_t a[4], b[4];
};
struct Write {
    uint32_t address;
    uint8_t bytes[16];
    uint32_t size;
};
struct Barrier {
    uint32_t expected, pending, phases;
    int64_t bytes;
    uint32_t initialized_by;
    bool visible;  ///< to the engine of copies, since that thread has fenced
};
struct Meeting {
    uint32_t here, times;
};
struct Cta {
    int64_t free_registers;
    uint32_t left;  ///< threads
};
struct Thread {
    ucontext_t context;
    std::vector<uint8_t> stack;
    bool ended, fenced_waves;
    uint32_t cluster_phase;  ///< of the cluster's barrier, that it arrived in
    std::vector<Wave> open_waves;
    std::vector<std::vector<Wave>> waves;
    std::vector<Copy> open_stores;
    std::deque<std::vector<Copy>> stores;  // by group
    std::vector<Write> unfenced;
    uint32_t given[5];  // to the lanes of its warp
};

inline uint32_t current, cta, ctas, count, cluster_size, cluster_arrivals, cluster_phases;
inline bool in_thread;
inline uint64_t events;
inline std::vector<Thread> threads;
inline std::vector<Cta> of_cluster;
inline std::vector<Copy> loads;
inline std::vector<Sums> sums_sent;
inline std::map<uint32_t, Barrier> barriers;
inline std::map<uint32_t, Meeting> meetings;
inline ucontext_t scheduler;
inline std::mt19937 draw;
inline std::string failure;
inline void (*body)(const void*);
inline const void* body_params;

inline int64_t launch_registers() { return std::min(65536 / count / 8 * 8, 255u); }  // a thread's share of the SM
inline uint32_t rank() {
    return current / count;
}
inline Thread& self() {
    return threads[current];
}

inline void yield() {
    const uint32_t mine = current;
    swapcontext(&threads[mine].context, &scheduler);
    current = mine;
}

inline void require(bool holds, const char* what) {
    if (!holds) {
        if (failure.empty()) {
            failure = "CTA " + std::to_string(cta + rank()) + ", thread " + std::to_string(current % count) + ": " + what;
        }
        if (in_thread) {
            yield();  // for good
        }
    }
}

/// Where any other thread may come first.
inline void step() {
    ++events;
    if (draw() % 4 == 0) {
        yield();
    }
}

template <class Condition>
inline void wait_until(Condition holds) {
    while (!holds()) {
        yield();
    }
    ++events;
}

inline void meet(uint32_t place, uint32_t expected) {
    place += rank() << 16;
    Meeting& meeting = meetings[place];
    const uint32_t times = meeting.times;
    if (++meeting.here == expected) {
        meeting.here = 0;
        ++meeting.times;
    }
    ++events;
    wait_until([&] { return meetings[place].times != times; });
}

/// An address with the rank of its CTA: without one it is of this CTA.
inline uint32_t ranked(uint32_t address) {
    return address >> 24 == 0 ? address | (rank() + 1) << 24 : address;
}

inline uint32_t in_cta(uint32_t address, uint32_t of) {
    return (address & 0xffffff) | (of + 1) << 24;
}

inline uint8_t* at(uint32_t address) {
    const uint32_t full = ranked(address), place = full & 0xffffff, of = (full >> 24) - 1;
    require(place < kSharedBytes && of < cluster_size, "an address outside of shared memory");
    require(of_cluster[of].left != 0, "shared memory of a CTA that has ended");
    return memory[of] + place;
}

inline Barrier& barrier_at(uint32_t address) {
    require(barriers.count(ranked(address)) == 1, "a barrier that is not initialised");
    require(of_cluster[(ranked(address) >> 24) - 1].left != 0, "a barrier of a CTA that has ended");
    return barriers[ranked(address)];
}

inline void arrive_in_cluster() {
    if (++cluster_arrivals == cluster_size * count) {
        cluster_arrivals = 0;
        ++cluster_phases;
    }
    ++events;
}

inline void complete(Barrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        ++barrier.phases;
        barrier.pending = barrier.expected;
    }
}

/// Calls `visit(place in shared memory, address in the matrix or null)` for each byte of a box.
template <class Visit>
inline void for_bytes(const Copy& copy, uint32_t of, Visit visit) {
    const Map& map = copy.map;
    const uint32_t row_bytes = map.box_inner * map.element_bytes;
    for (uint32_t row = 0; row < map.box_outer; ++row) {
        for (uint32_t byte = 0; byte < row_bytes; ++byte) {
            uint32_t place = copy.place + row * row_bytes + byte;
            place ^= (place >> 7 & map.swizzle) << 4;
            const uint64_t matrix_row = uint64_t{copy.outer} + row;
            const uint64_t matrix_byte = uint64_t{copy.inner} * map.element_bytes + byte;
            const bool inside = matrix_row < map.outer && matrix_byte < map.inner * map.element_bytes;
            const uint64_t address = map.base + matrix_row * map.stride_bytes + matrix_byte;
            visit(at(in_cta(place, of)), inside ? reinterpret_cast<uint8_t*>(address) : nullptr);
        }
    }
}

inline void deliver(size_t index) {
    const Copy copy = loads[index];
    loads.erase(loads.begin() + index);
    for (uint32_t of = 0; of < cluster_size; ++of) {
        if (copy.ctas >> of & 1) {
            for_bytes(copy, of, [](uint8_t* place, const uint8_t* source) { *place = source == nullptr ? 0 : *source; });
            Barrier& barrier = barrier_at(in_cta(copy.barrier, of));
            barrier.bytes -= int64_t{copy.map.box_inner} * copy.map.box_outer * copy.map.element_bytes;
            complete(barrier);
        }
    }
    ++events;
}

inline void deliver_sums(size_t index) {
    const Sums sums = sums_sent[index];
    sums_sent.erase(sums_sent.begin() + index);
    std::memcpy(at(sums.place), sums.values, sums.bytes);
    Barrier& barrier = barrier_at(sums.barrier);
    barrier.bytes -= sums.bytes;
    complete(barrier);
    ++events;
}

inline const std::array<float, 256> kE4m3 = [] {
    std::array<float, 256> values;
    for (int code = 0; code < 256; ++code) {
        const int exponent = code >> 3 & 15, fraction = code & 7;
        const float value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
        values[code] = (code & 127) == 127 ? NAN : code & 128 ? -value : value;
    }
    return values;
}();

/// Row `row` of a K-major operand, 32 columns from where the descriptor points to.
inline void read_operand(uint64_t descriptor, uint32_t row, float (&values)[32]) {
    const uint32_t start = (descriptor & 0x3fff) << 4, group_bytes = (descriptor >> 32 & 0x3fff) << 4;
    require(descriptor >> 62 == 1, "a descriptor without 128-byte swizzle");
    for (uint32_t k = 0; k < 32; ++k) {
        uint32_t place = start + row / 8 * group_bytes + row % 8 * 128 + k;
        place ^= (place >> 7 & 7) << 4;
        values[k] = kE4m3[*at(place)];
    }
}

/// What the wave leaves in this thread's registers.
inline void compute(const Wave& wave) {
    const uint32_t thread = current % count % 128;
    std::vector<double> sums(wave.cols / 2, 0.0);
    for (uint32_t slice = 0; slice < 4; ++slice) {
        float a[2][32], b[32];
        read_operand(wave.a[slice], thread / 32 * 16 + thread % 32 / 4, a[0]);
        read_operand(wave.a[slice], thread / 32 * 16 + thread % 32 / 4 + 8, a[1]);
        for (uint32_t pair = 0; pair < wave.cols / 4; ++pair) {
            read_operand(wave.b[slice], pair / 2 * 8 + thread % 4 * 2 + pair % 2, b);
            for (uint32_t half = 0; half < 2; ++half) {
                for (uint32_t k = 0; k < 32; ++k) {
                    sums[pair / 2 * 4 + half * 2 + pair % 2] += double{a[half][k]} * b[k];
                }
            }
        }
    }
    for (uint32_t i = 0; i < wave.cols / 2; ++i) {
        wave.sums[i] = static_cast<float>(sums[i]);
    }
}

}  // namespace emulated
