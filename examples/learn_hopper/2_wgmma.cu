// Step 2: one warpgroup multiplies one tile on the tensor cores: D[64, 128] = A[64, 128] B[128, 128]^T, e4m3 to FP32.
//
// Each CTA computes one tile of D[M, N] = A[M, 128] B[N, 128]^T. Four warps; one thread asks for both operands.
#include "fp8gemm/common/math.cuh"
#include "fp8gemm/mainloop/descriptor.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fragment.cuh"

using namespace fp8gemm;

constexpr uint32_t kTileM = 64;
constexpr uint32_t kTileN = 128;
constexpr uint32_t kTileK = 128;

struct Params {
    TensorMap a_map;  // (M, 128) e4m3; a box is a tile, swizzled by 128 bytes
    TensorMap b_map;  // (N, 128) e4m3, likewise
    float* d;         // (M, N), packed
    uint32_t m;
    uint32_t n;  // even
};

struct Shared {
    alignas(1024) uint8_t a[kTileM * kTileK];
    alignas(1024) uint8_t b[kTileN * kTileK];
    uint64_t full;
};

extern "C" __global__ void __launch_bounds__(128) wgmma(const __grid_constant__ Params params) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
    const uint32_t tiles_n = ceil_div(params.n, kTileN);
    const uint32_t first_row = blockIdx.x / tiles_n * kTileM;
    const uint32_t first_col = blockIdx.x % tiles_n * kTileN;
    const uint32_t warp = ptx::warp_index();
    if (warp == 0 && ptx::elect_one()) {
        ptx::mbarrier_init(&shared.full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect_tx(&shared.full, sizeof(shared.a) + sizeof(shared.b));
        ptx::tma_load_2d(shared.a, params.a_map, &shared.full, 0, first_row);
        ptx::tma_load_2d(shared.b, params.b_map, &shared.full, 0, first_col);
    }
    __syncthreads();  // nobody waits at a barrier that is not initialised
    ptx::mbarrier_wait(&shared.full, 0);

    Fragment d;
    ptx::wgmma_fence();
    ptx::Wgmma<kTileN>::multiply(d, matrix_descriptor(shared.a), matrix_descriptor(shared.b));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    store(params.d, params.m, params.n, first_row + warp * 16, first_col, d);
}
