// WGMMA: the asynchronous matrix multiply of a warpgroup, for e4m3 operands in shared memory.
//
// All 128 threads of the warpgroup execute every function here. Order of use: fence, multiply (any number), commit,
// wait, and then `fma_in_order`, which alone may read what was multiplied.
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

/// fma.rn.f32: sum += scale * product, rounded once, where `product` is a register that WGMMA wrote.
/// The compiler keeps it behind the wait that completes the product, and before the start of the next wave, which would
/// otherwise need registers of its own.
FP8GEMM_DEVICE void fma_in_order(float scale, float product, float& sum) {
    asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(scale), "f"(product));
}

/// wgmma.mma_async.sync.aligned.m64nNk32.f32.e4m3.e4m3, four times: d = a b over 128 columns of K, of which `a` and `b`
/// describe the first 32. 32 bytes further on are two more in a descriptor.
/// D fragment: thread t of the warpgroup holds rows 16 (t / 32) + (t % 32) / 4 and 8 further down; d[4 j] and d[4 j + 1]
/// are columns 8 j + 2 (t % 4) and the next of the first row, d[4 j + 2] and d[4 j + 3] the same of the second.
/// NOTE: One statement for four instructions, because time to compile goes with the number of operands (0.79 against
/// 0.91 s for 128x192). Descriptors are declared as changed to have the lowest numbers.
template <uint32_t kN>
struct Wgmma;

// clang-format off
#define FP8GEMM_WGMMA_K32(N, OFFSET, ACCUMULATE)                                                                      \
    "add.u64 a, %0, " #OFFSET ";\n"                                                                                   \
    "add.u64 b, %1, " #OFFSET ";\n"                                                                                   \
    "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" FP8GEMM_NAMES_##N "}, a, b, " ACCUMULATE ", 1, 1;\n"

#define FP8GEMM_WGMMA(N)                                                                 \
    template <>                                                                          \
    struct Wgmma<N> {                                                                    \
        static FP8GEMM_DEVICE void multiply(float (&d)[N / 2], uint64_t a, uint64_t b) { \
            asm volatile(                                                                \
                "{\n"                                                                    \
                ".reg .pred start, accumulate;\n"                                        \
                ".reg .b64 a, b;\n"                                                      \
                "setp.ne.b32 start, 0, 0;\n"                                             \
                "setp.ne.b32 accumulate, 1, 0;\n"                                        \
                FP8GEMM_WGMMA_K32(N, 0, "start")                                         \
                FP8GEMM_WGMMA_K32(N, 2, "accumulate")                                    \
                FP8GEMM_WGMMA_K32(N, 4, "accumulate")                                    \
                FP8GEMM_WGMMA_K32(N, 6, "accumulate")                                    \
                "}"                                                                      \
                : "+l"(a), "+l"(b), FP8GEMM_OPERANDS_##N);                               \
        }                                                                                \
    };
// clang-format on

FP8GEMM_WGMMA(8)
FP8GEMM_WGMMA(16)
FP8GEMM_WGMMA(24)
FP8GEMM_WGMMA(32)
FP8GEMM_WGMMA(40)
FP8GEMM_WGMMA(48)
FP8GEMM_WGMMA(56)
FP8GEMM_WGMMA(64)
FP8GEMM_WGMMA(72)
FP8GEMM_WGMMA(80)
FP8GEMM_WGMMA(88)
FP8GEMM_WGMMA(96)
FP8GEMM_WGMMA(104)
FP8GEMM_WGMMA(112)
FP8GEMM_WGMMA(120)
FP8GEMM_WGMMA(128)
FP8GEMM_WGMMA(136)
FP8GEMM_WGMMA(144)
FP8GEMM_WGMMA(152)
FP8GEMM_WGMMA(160)
FP8GEMM_WGMMA(168)
FP8GEMM_WGMMA(176)
FP8GEMM_WGMMA(184)
FP8GEMM_WGMMA(192)

#undef FP8GEMM_WGMMA
#undef FP8GEMM_WGMMA_K32

}  // namespace fp8gemm::ptx
