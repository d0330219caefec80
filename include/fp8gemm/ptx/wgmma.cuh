// WGMMA: the asynchronous matrix multiply of a warpgroup, for e4m3 operands in shared memory.
//
// All 128 threads of the warpgroup execute every function here. Order of use: fence, multiply (any number), commit,
// wait; the accumulators may be touched again once `touch_after_wait` has followed the wait.
#pragma once

#include "fp8gemm/common/types.cuh"
#include "fp8gemm/ptx/wgmma_operands.cuh"

namespace fp8gemm::ptx {

/// wgmma.fence.sync.aligned: orders earlier register accesses before the WGMMAs that follow.
FP8GEMM_DEVICE void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// wgmma.commit_group.sync.aligned
FP8GEMM_DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// wgmma.wait_group.sync.aligned: at most `kPending` committed groups are still running.
template <uint32_t kPending>
FP8GEMM_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// No instruction: keeps the compiler from moving a use of the accumulators to before the wait that completes them.
/// NOTE: Register by register. One statement for all, as in `pin`, made kernels with waves of 160 and 192 columns spill.
template <uint32_t kCount>
FP8GEMM_DEVICE void touch_after_wait(float (&accumulators)[kCount]) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
        asm volatile("" : "+f"(accumulators[i])::"memory");
    }
}

/// wgmma.mma_async.sync.aligned.m64nNk32.f32.e4m3.e4m3: d = a b (+ d when `accumulate`).
/// A fragment: thread t of the warpgroup holds rows 16 (t / 32) + (t % 32) / 4 and 8 further down; d[4 j] and d[4 j + 1]
/// are columns 8 j + 2 (t % 4) and the next of the first row, d[4 j + 2] and d[4 j + 3] the same of the second.
/// `pin` is no instruction: what the compiler does with d before this place it does not move to after it. One statement
/// for all registers compiles faster than one for each.
template <uint32_t kN>
struct Wgmma;

// clang-format off
#define FP8GEMM_WGMMA(N, A, B, ACCUMULATE)                                                                        \
    template <>                                                                                                   \
    struct Wgmma<N> {                                                                                             \
        static FP8GEMM_DEVICE void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {         \
            asm volatile(                                                                                         \
                "{\n"                                                                                             \
                ".reg .pred accumulate;\n"                                                                        \
                "setp.ne.b32 accumulate, %" #ACCUMULATE ", 0;\n"                                                  \
                "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" FP8GEMM_NAMES_##N "}, %" #A ", %" #B \
                ", accumulate, 1, 1;\n"                                                                           \
                "}"                                                                                               \
                : FP8GEMM_OPERANDS_##N                                                                            \
                : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));                                         \
        }                                                                                                         \
        static FP8GEMM_DEVICE void pin(float (&d)[N / 2]) {                                                       \
            asm volatile("" : FP8GEMM_OPERANDS_##N : : "memory");                                                 \
        }                                                                                                         \
    };
// clang-format on

FP8GEMM_WGMMA(8, 4, 5, 6)
FP8GEMM_WGMMA(16, 8, 9, 10)
FP8GEMM_WGMMA(24, 12, 13, 14)
FP8GEMM_WGMMA(32, 16, 17, 18)
FP8GEMM_WGMMA(40, 20, 21, 22)
FP8GEMM_WGMMA(48, 24, 25, 26)
FP8GEMM_WGMMA(56, 28, 29, 30)
FP8GEMM_WGMMA(64, 32, 33, 34)
FP8GEMM_WGMMA(72, 36, 37, 38)
FP8GEMM_WGMMA(80, 40, 41, 42)
FP8GEMM_WGMMA(88, 44, 45, 46)
FP8GEMM_WGMMA(96, 48, 49, 50)
FP8GEMM_WGMMA(104, 52, 53, 54)
FP8GEMM_WGMMA(112, 56, 57, 58)
FP8GEMM_WGMMA(120, 60, 61, 62)
FP8GEMM_WGMMA(128, 64, 65, 66)
FP8GEMM_WGMMA(136, 68, 69, 70)
FP8GEMM_WGMMA(144, 72, 73, 74)
FP8GEMM_WGMMA(152, 76, 77, 78)
FP8GEMM_WGMMA(160, 80, 81, 82)
FP8GEMM_WGMMA(168, 84, 85, 86)
FP8GEMM_WGMMA(176, 88, 89, 90)
FP8GEMM_WGMMA(184, 92, 93, 94)
FP8GEMM_WGMMA(192, 96, 97, 98)

#undef FP8GEMM_WGMMA

}  // namespace fp8gemm::ptx
