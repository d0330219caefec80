// Epilogue: registers -> shared memory (stmatrix) -> global memory (TMA), the last step by a warp of its own.
//
// A consumer warpgroup converts its accumulators into a staging tile and goes on with the next tile at once; the store
// warp that serves it waits for the staging tile, issues the copies and hands the tile back when they have read it.
// The two talk through a ring of one stage: the consumers are its writers, the store warp its reader.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/pipeline/barrier_ring.cuh"
#include "fp8gemm/ptx/stmatrix.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/tma.cuh"
#include "fp8gemm/scheduler/persistent.cuh"

namespace fp8gemm {

template <class Config>
class TmaStore {
    using Shape = TileShape<Config>;
    using Ring = BarrierRing<1>;
    static constexpr uint32_t kElementBytes = 2;
    /// Columns of one copy: at most 128 bytes, the widest swizzle.
    static constexpr uint32_t kBoxCols = minimum(Shape::kWarpgroupCols, 128 / kElementBytes);
    static constexpr uint32_t kBoxes = Shape::kWarpgroupCols / kBoxCols;
    static constexpr uint32_t kRowBytes = kBoxCols * kElementBytes;
    static constexpr uint32_t kBoxBytes = Shape::kWarpgroupRows * kRowBytes;

    static_assert(kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128, "a row of a box is one swizzle span");

public:
    static constexpr uint32_t kStoreWarps = Shape::kWarpgroups;

    struct SharedStorage {
        alignas(1024) uint8_t tiles[Shape::kWarpgroups][kBoxes * kBoxBytes];
        Ring rings[Shape::kWarpgroups];

        FP8GEMM_DEVICE void initialize() {
            for (uint32_t warpgroup = 0; warpgroup < Shape::kWarpgroups; ++warpgroup) {
                rings[warpgroup].initialize(kWarpsPerWarpgroup, 1);
            }
        }
    };

    /// The consumers' side.
    class Writer {
        uint8_t* tile_;
        Ring& ring_;
        uint32_t warp_row_;
        Ring::State state_ = Ring::State::for_writer();

    public:
        template <class Params>
        FP8GEMM_DEVICE Writer(const Params&, SharedStorage& shared, uint32_t warpgroup, uint32_t warp)
            : tile_(shared.tiles[warpgroup]), ring_(shared.rings[warpgroup]), warp_row_(first_row_of_warp(warp)) {}

        FP8GEMM_DEVICE void write(TileCoordinate, const typename Shape::Accumulators& accumulators) {
            ring_.wait_empty(state_);
#pragma unroll
            for (uint32_t m = 0; m < Shape::kWavesM; ++m) {
#pragma unroll
                for (uint32_t n = 0; n < Shape::kWavesN; ++n) {
                    stage_wave(m * Shape::kWaveM, n * Shape::kWaveN, accumulators[m][n]);
                }
            }
            ptx::fence_proxy_async();
            __syncwarp();
            if (ptx::lane_index() == 0) {
                ptx::mbarrier_arrive(&ring_.full[0]);
            }
            state_.advance();
        }

    private:
        FP8GEMM_DEVICE void stage_wave(uint32_t row, uint32_t col, const float (&sums)[Shape::kWaveRegisters]) {
            // Lane l addresses row l % 16 of the left (l < 16) or right half of 16 columns.
            const uint32_t lane = ptx::lane_index();
            const uint32_t lane_row = row + warp_row_ + lane % 16;
#pragma unroll
            for (uint32_t i = 0; i < Shape::kWaveN / 16; ++i) {
                const uint32_t lane_col = col + i * 16 + lane / 16 * 8;
                const float* s = &sums[i * 8];
                ptx::store_matrix_x4(address(lane_row, lane_col), ptx::pack_bfloat16(s[0], s[1]),
                                     ptx::pack_bfloat16(s[2], s[3]), ptx::pack_bfloat16(s[4], s[5]),
                                     ptx::pack_bfloat16(s[6], s[7]));
            }
        }

        /// TMA's swizzle: the 16-byte chunk of a row is exchanged by the number of the 128-byte line it lies in.
        FP8GEMM_DEVICE uint32_t address(uint32_t row, uint32_t col) const {
            constexpr uint32_t kChunkMask = kRowBytes / 16 - 1;
            const uint32_t offset = row * kRowBytes + col % kBoxCols * kElementBytes;
            const uint32_t swizzled = offset ^ ((offset / 128 & kChunkMask) * 16);
            return ptx::shared_address(tile_) + col / kBoxCols * kBoxBytes + swizzled;
        }
    };

    /// The store warp's side: every tile of this CTA, for one warpgroup. By one thread.
    template <class Params>
    static FP8GEMM_DEVICE void drain(const Params& params, SharedStorage& shared, PersistentSchedule<Config> schedule,
                                     uint32_t warpgroup) {
        const WarpgroupOrigin<Shape, Config> origin(warpgroup);
        const uint8_t* tile = shared.tiles[warpgroup];
        Ring& ring = shared.rings[warpgroup];
        auto state = Ring::State::for_reader();
        TileCoordinate coordinate;
        while (schedule.next(coordinate)) {
            const uint32_t row = coordinate.m * Shape::kBlockM + origin.row;
            const uint32_t col = coordinate.n * Shape::kBlockN + origin.col;
            ring.wait_full(state);
#pragma unroll
            for (uint32_t box = 0; box < kBoxes; ++box) {
                ptx::tma_store_2d(params.d_map, tile + box * kBoxBytes, col + box * kBoxCols, row);
            }
            ptx::tma_store_commit();
            ptx::tma_store_wait_read();
            ptx::mbarrier_arrive(&ring.empty[0]);
            state.advance();
        }
    }
};

}  // namespace fp8gemm
