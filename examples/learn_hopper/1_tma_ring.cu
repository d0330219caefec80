// Step 1: a ring of stages in shared memory, which the copy engine (TMA) fills and threads empty.
//
// Each CTA copies 128 columns of a matrix of bytes, 64 rows at a time.
//
// Warp roles
//   warps 0-3   copy tiles out
//   warp 4      one thread asks for tiles
//
// Barriers        arrives                               count   first wait, parity
//   ring.full     the asking thread + the bytes         1       copying threads, 0
//   ring.empty    one lane of each copying warp         4       asking thread, 1
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"

using namespace fp8gemm;

constexpr uint32_t kTileRows = 64;
constexpr uint32_t kTileCols = 128;
constexpr uint32_t kTileBytes = kTileRows * kTileCols;
constexpr uint32_t kConsumerWarps = 4;
using Ring = BarrierRing<4>;

struct Params {
    TensorMap source_map;  // (rows, cols) bytes; a box is a tile, swizzled by 128 bytes
    uint8_t* destination;  // the same, packed
    uint32_t rows;
    uint32_t cols;  // a multiple of 16
};

struct Shared {
    alignas(1024) uint8_t tiles[4][kTileBytes];
    Ring ring;
};

FP8GEMM_DEVICE void produce(const Params& params, Shared& shared) {
    auto state = Ring::State::for_writer();
    for (uint32_t row = 0; row < params.rows; row += kTileRows) {
        shared.ring.wait_empty(state);
        uint64_t* full = &shared.ring.full[state.stage];
        ptx::mbarrier_arrive_expect_tx(full, kTileBytes);
        ptx::tma_load_2d(shared.tiles[state.stage], params.source_map, full, blockIdx.x * kTileCols, row);
        state.advance();
    }
}

FP8GEMM_DEVICE void consume(const Params& params, Shared& shared) {
    const uint32_t piece = threadIdx.x % 8;  // 16 bytes; a row of a tile has 8 of them
    const uint32_t col = blockIdx.x * kTileCols + piece * 16;
    auto state = Ring::State::for_reader();
    for (uint32_t first_row = 0; first_row < params.rows; first_row += kTileRows) {
        shared.ring.wait_full(state);
        const uint8_t* tile = shared.tiles[state.stage];
        for (uint32_t row = threadIdx.x / 8; row < kTileRows; row += 16) {
            const uint32_t place = row * kTileCols + (piece ^ row % 8) * 16;  // undoes the swizzle
            if (first_row + row < params.rows && col < params.cols) {
                const uint64_t target = uint64_t{first_row + row} * params.cols + col;
                *reinterpret_cast<uint4*>(params.destination + target) = *reinterpret_cast<const uint4*>(tile + place);
            }
        }
        __syncwarp();
        if (ptx::lane_index() == 0) {
            ptx::mbarrier_arrive(&shared.ring.empty[state.stage]);
        }
        state.advance();
    }
}

extern "C" __global__ void __launch_bounds__(160) tma_ring(const __grid_constant__ Params params) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
    const uint32_t warp = ptx::warp_index();
    if (warp == 0 && ptx::elect_one()) {
        shared.ring.initialize(1, kConsumerWarps);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (warp < kConsumerWarps) {
        consume(params, shared);
    } else if (ptx::elect_one()) {
        produce(params, shared);
    }
}
