"""The chaos build: random short sleeps before issue, arrive and wait, so that a missing order is soon found out.

The sleeps are put into a copy of the headers by the same mechanism as faults; the headers know nothing of them.
"""

from __future__ import annotations

from tests.mutations.mutant import Edit

_END = "}  // namespace fp8gemm\n"

# Of eight calls one sleeps, up to about 2 us: as long as a load from L2 takes, or a few K blocks. All lanes of a
# converged warp read one clock, so they agree, and instructions that want a converged warp still find one.
_PAUSE = """\
#ifdef __CUDACC__
namespace chaos {

FP8GEMM_DEVICE void pause() {
    uint32_t clock, time;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(time));
    uint32_t hash = clock ^ time * 0x9e3779b9u ^ (threadIdx.x / 32 + 1) * 0x85ebca6bu ^ (blockIdx.x + 1) * 0xc2b2ae35u;
    hash = (hash ^ hash >> 15) * 0x2c1b3c6du;
    hash = (hash ^ hash >> 12) * 0x297a2d39u;
    hash ^= hash >> 15;
    if ((hash & 7u) == 0) {
        asm volatile("nanosleep.u32 %0;" ::"r"(hash >> 22));
    }
}

}  // namespace chaos
#endif

"""


def _after(header: str, *places: str) -> list[Edit]:
    """Sleep after a statement, or first thing in a function whose signature goes up to the opening brace."""
    return [Edit(header, place, f"{place}\n    chaos::pause();") for place in places]


_ARRIVES = (
    '_, [%0 + %1];" ::"r"(address), "n"(kOffset) : "memory");',
    '"}" ::"r"(barrier),\n        "r"(rank)\n        : "memory");',
)

CHAOS = (
    Edit("common/types.cuh", _END, _PAUSE + _END),
    *_after(
        "ptx/mbarrier.cuh",
        "FP8GEMM_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {",
        "FP8GEMM_DEVICE void mbarrier_arrive(uint32_t address) {",
        "FP8GEMM_DEVICE void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank) {",
        "FP8GEMM_DEVICE void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {",
        "FP8GEMM_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {",
        "FP8GEMM_DEVICE void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {",
        "FP8GEMM_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t parity) {",
    ),
    # And after an arrival: what a thread still does with a stage that it has given away then comes late.
    *_after("ptx/mbarrier.cuh", *_ARRIVES),
    *_after(
        "ptx/tma.cuh",
        "                                uint32_t outer) {",  # of tma_load_2d
        "                                uint32_t outer, uint64_t policy) {",
        "uint32_t middle, uint32_t outer) {",
        "uint32_t middle, uint32_t outer, uint64_t policy) {",
        "uint32_t outer, uint16_t mask) {",
        "FP8GEMM_DEVICE void tma_store_2d(const TensorMap& map, const void* source, uint32_t inner, uint32_t outer) {",
        "uint32_t outer,\n                                 uint64_t policy) {",  # of tma_store_2d
        "FP8GEMM_DEVICE void tma_store_commit() {",
        "FP8GEMM_DEVICE void tma_store_wait_read() {",
        "FP8GEMM_DEVICE void fence_proxy_async() {",
    ),
    *_after("ptx/wgmma.cuh", "FP8GEMM_DEVICE void wgmma_fence() {"),
    *_after(
        "ptx/cluster.cuh",
        "FP8GEMM_DEVICE void cluster_arrive() {",
        "FP8GEMM_DEVICE void cluster_wait() {",
        "FP8GEMM_DEVICE void store_async(uint32_t destination, uint32_t barrier, float2 values) {",
    ),
    *_after(
        "ptx/thread.cuh",
        "FP8GEMM_DEVICE void decrease_registers() {",
        "FP8GEMM_DEVICE void increase_registers() {",
        "FP8GEMM_DEVICE void named_barrier_sync(uint32_t barrier, uint32_t threads) {",
        "FP8GEMM_DEVICE void named_barrier_arrive(uint32_t barrier, uint32_t threads) {",
        "FP8GEMM_DEVICE void wait_for_previous_grids() {",
        "FP8GEMM_DEVICE void launch_dependents() {",
    ),
)
