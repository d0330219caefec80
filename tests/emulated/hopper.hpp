// Hopper on the host, as far as examples/learn_hopper uses it: each thread of a CTA is a fiber, and each function of
// fp8gemm::ptx does here what the PTX ISA says. What the hardware may do at any time is done at a bad one: warps run in
// random order and stop at any of these functions; copies arrive in any order, and what they will overwrite is gone when
// they are asked for; a WGMMA and a bulk store read shared memory when they are waited for; what stmatrix wrote is seen
// by bulk stores only behind a proxy fence.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <ucontext.h>

#define FP8GEMM_DEVICE inline
#define FP8GEMM_HOST_DEVICE inline
#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define threadIdx (emulated::Index{emulated::current})
#define blockIdx (emulated::Index{emulated::cta})
#define gridDim (emulated::Index{emulated::ctas})

struct float2 {
    float x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}

alignas(1024) inline uint8_t shared_bytes[227 * 1024];

namespace fp8gemm {
using ::uint32_t, ::uint64_t, ::uint8_t;
struct alignas(64) TensorMap {
    uint64_t base, inner, outer, stride_bytes;
    uint32_t element_bytes, box_inner, box_outer, swizzled;
    uint8_t unused[80];
};
}  // namespace fp8gemm

namespace emulated {

using fp8gemm::TensorMap;

struct Index {
    uint32_t x;
};
struct Copy {
    TensorMap map;
    uint32_t place, barrier, inner, outer;
};
struct Wave {
    float* sums;
    uint32_t cols;
    uint64_t a[4], b[4];
};
struct Write {
    uint32_t address;
    uint8_t bytes[16];
};
struct Barrier {
    uint32_t expected, pending, phases;
    int64_t bytes;
};
struct Meeting {
    uint32_t here, times;
};
struct Thread {
    ucontext_t context;
    std::vector<uint8_t> stack;
    bool ended, fenced_waves;
    std::vector<Wave> open_waves;
    std::vector<std::vector<Wave>> waves;
    std::vector<Copy> open_stores, stores;
    std::vector<Write> unfenced;
    uint32_t given[5];  // to the lanes of its warp
};

constexpr uint32_t kLaunchRegisters = 168;
inline uint32_t current, cta, ctas, count;
inline int64_t free_registers;
inline bool barriers_visible;
inline uint64_t events;
inline std::vector<Thread> threads;
inline std::vector<Copy> loads;
inline std::map<uint32_t, Barrier> barriers;
inline std::map<uint32_t, Meeting> meetings;
inline ucontext_t scheduler;
inline std::mt19937 draw;
inline std::string failure;
inline void (*body)(const void*);
inline const void* body_params;

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
            failure = "CTA " + std::to_string(cta) + ", thread " + std::to_string(current) + ": " + what;
        }
        yield();  // for good
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
    Meeting& meeting = meetings[place];
    const uint32_t times = meeting.times;
    if (++meeting.here == expected) {
        meeting.here = 0;
        ++meeting.times;
    }
    ++events;
    wait_until([&] { return meetings[place].times != times; });
}

inline uint8_t* at(uint32_t address) {
    require(address < sizeof(shared_bytes), "an address outside of shared memory");
    return shared_bytes + address;
}

inline Barrier& barrier_at(uint32_t address) {
    require(barriers.count(address) == 1, "a barrier that is not initialised");
    return barriers[address];
}

inline void complete(Barrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        ++barrier.phases;
        barrier.pending = barrier.expected;
    }
}

/// Calls `visit(place in shared memory, address in the matrix or null)` for each byte of a box.
template <class Visit>
inline void for_bytes(const Copy& copy, Visit visit) {
    const TensorMap& map = copy.map;
    const uint32_t row_bytes = map.box_inner * map.element_bytes;
    for (uint32_t row = 0; row < map.box_outer; ++row) {
        for (uint32_t byte = 0; byte < row_bytes; ++byte) {
            uint32_t place = copy.place + row * row_bytes + byte;
            if (map.swizzled != 0) {
                place ^= (place >> 7 & 7) << 4;
            }
            const uint64_t matrix_row = uint64_t{copy.outer} + row;
            const uint64_t matrix_byte = uint64_t{copy.inner} * map.element_bytes + byte;
            const bool inside = matrix_row < map.outer && matrix_byte < map.inner * map.element_bytes;
            const uint64_t address = map.base + matrix_row * map.stride_bytes + matrix_byte;
            visit(at(place), inside ? reinterpret_cast<uint8_t*>(address) : nullptr);
        }
    }
}

inline void deliver(size_t index) {
    const Copy copy = loads[index];
    loads.erase(loads.begin() + index);
    for_bytes(copy, [](uint8_t* place, const uint8_t* source) { *place = source == nullptr ? 0 : *source; });
    Barrier& barrier = barriers[copy.barrier];
    barrier.bytes -= int64_t{copy.map.box_inner} * copy.map.box_outer * copy.map.element_bytes;
    complete(barrier);
    ++events;
}

inline float decode_e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 127) == 127) {
        return NAN;
    }
    const float value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return code & 128 ? -value : value;
}

/// Row `row` of a K-major operand, 32 columns from where the descriptor points to.
inline void read_operand(uint64_t descriptor, uint32_t row, float (&values)[32]) {
    const uint32_t start = (descriptor & 0x3fff) << 4, group_bytes = (descriptor >> 32 & 0x3fff) << 4;
    require(descriptor >> 62 == 1, "a descriptor without 128-byte swizzle");
    for (uint32_t k = 0; k < 32; ++k) {
        uint32_t place = start + row / 8 * group_bytes + row % 8 * 128 + k;
        place ^= (place >> 7 & 7) << 4;
        values[k] = decode_e4m3(*at(place));
    }
}

/// What the wave leaves in this thread's registers.
inline void compute(const Wave& wave) {
    const uint32_t thread = current % 128;
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
