// Who am I: lane, warp, the elected thread; and what a warpgroup may ask of the register file and of the grid before.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm::ptx {

/// %laneid
/// NOTE: Volatile, so that each use reads it anew. Otherwise the compiler computes what an epilogue derives from it once,
/// before the main loop, and holds it in registers that the main loop does not have to spare.
FP8GEMM_DEVICE uint32_t lane_index() {
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/// A value that is the same in the whole warp, by a shuffle so that the compiler knows it to be: what is derived from it,
/// and what changes in a loop of so many turns, then lives in uniform registers.
FP8GEMM_DEVICE uint32_t same_in_warp(uint32_t value) {
    return __shfl_sync(0xffffffffu, value, 0);
}

/// The warp's index in its CTA.
FP8GEMM_DEVICE uint32_t warp_index() {
    return same_in_warp(threadIdx.x / 32);
}

/// elect.sync: true in exactly one thread of a converged warp.
FP8GEMM_DEVICE bool elect_one() {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
}

/// and.b32, computed in this place: not where the result is used, which may be a branch of one lane.
FP8GEMM_DEVICE uint32_t and_in_order(uint32_t a, uint32_t b) {
    uint32_t result;
    asm volatile("and.b32 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

/// Has a value computed in this place at the latest: not where it is used, behind a barrier.
FP8GEMM_DEVICE void compute_here(uint32_t& value) {
    asm volatile("" : "+r"(value));
}

FP8GEMM_DEVICE void compute_here(uint64_t& value) {
    asm volatile("" : "+l"(value));
}

/// setmaxnreg.dec: gives registers back to the CTA's pool. By every warp of a warpgroup.
template <uint32_t kRegisters>
FP8GEMM_DEVICE void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// setmaxnreg.inc: waits until the pool has enough registers and takes them.
template <uint32_t kRegisters>
FP8GEMM_DEVICE void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// nanosleep: for about so long, between no time and twice as much.
FP8GEMM_DEVICE void pause(uint32_t nanoseconds) {
    asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds));
}

/// barrier.cta.sync: waits until so many threads have come to this barrier of the CTA, whole warps each. What they wrote
/// before is then visible.
FP8GEMM_DEVICE void named_barrier_sync(uint32_t barrier, uint32_t threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// barrier.cta.arrive: counts this warp for a barrier at which others wait.
FP8GEMM_DEVICE void named_barrier_arrive(uint32_t barrier, uint32_t threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// griddepcontrol.wait: with programmatic dependent launch, until the grids before have completed and their writes are
/// visible; without it, nothing.
FP8GEMM_DEVICE void wait_for_previous_grids() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// griddepcontrol.launch_dependents: the grid that waits for this one may start as soon as every CTA has executed this or
/// has ended. Without programmatic dependent launch, nothing.
FP8GEMM_DEVICE void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace fp8gemm::ptx
