// Epilogue of groups: that of tma_store.cuh, but for tiles that end inside their rows. Behind a group's last row comes
// another group's first, or one that is nobody's, so that no box may reach there: the store warp's lanes copy the rows of
// such a part that are the group's own.
#pragma once

#include "fp8gemm/epilogue/tma_store.cuh"

namespace fp8gemm {

template <class Config>
class ClippedStore : public TmaStore<Config> {
    using Base = TmaStore<Config>;
    using typename Base::Ring;
    using typename Base::Shape;
    static constexpr uint32_t kPieceBytes = 16;
    static constexpr uint32_t kPiecesOfRow = Base::kRowBytes / kPieceBytes;
    static constexpr uint32_t kPieceCols = kPieceBytes / Base::kElementBytes;

public:
    using typename Base::SharedStorage;

    /// The store warp's side: every tile of this CTA, for one warpgroup. By the whole warp.
    template <class Params, class Schedule>
    static FP8GEMM_DEVICE void drain(const Params& params, SharedStorage& shared, Schedule schedule,
                                     uint32_t warpgroup) {
        const WarpgroupOrigin<Shape, Config> origin(warpgroup);
        Ring& ring = shared.rings[warpgroup];
        auto state = Ring::State::for_reader();
        typename Schedule::Tile tile;
        while (schedule.next(tile)) {
            Base::Prefetch::run(params, tile, origin);
            const uint32_t end = tile.end_of_d(params.m);
            const uint32_t first_row = tile.row_of_d() + origin.row;
            const uint32_t first_col = tile.col_of_d() + origin.col;
#pragma unroll 1
            for (uint32_t part = 0; part < Base::kParts; ++part) {
                const uint32_t row = first_row + part / Base::kPartsN * Base::kPartRows;
                const uint32_t col = first_col + part % Base::kPartsN * Base::kPartCols;
                const uint8_t* slot = shared.slots[warpgroup][state.stage];
                ring.wait_full(state);
                if (row + Base::kPartRows > end) {
                    copy_rows(params, slot, row, end, col);
                }
                __syncwarp();
                if (ptx::lane_index() == 0) {
                    if (row + Base::kPartRows <= end) {
                        ptx::tma_store_2d<Base::kAdds>(params.d_map, slot, col, row);
                        ptx::tma_store_commit();
                        ptx::tma_store_wait_read();
                    }
                    ptx::mbarrier_arrive(&ring.empty[state.stage]);
                }
                state.advance();
            }
        }
    }

private:
    /// Copies the rows from `row` up to `end` of a part, which lies swizzled in its slot, 16 bytes at a time.
    template <class Params>
    static FP8GEMM_DEVICE void copy_rows(const Params& params, const uint8_t* slot, uint32_t row, uint32_t end,
                                         uint32_t col) {
        const int64_t pitch = params.d_stride_m * Base::kElementBytes;
        const uint32_t lane_row = ptx::lane_index() / kPiecesOfRow;
        const uint32_t lane_col = ptx::lane_index() % kPiecesOfRow * kPieceCols;
        if (col + lane_col >= Config::kN) {
            return;
        }
        uint8_t* destination = static_cast<uint8_t*>(params.d) + (col + lane_col) * Base::kElementBytes;
#pragma unroll 1
        for (uint32_t i = lane_row; i < Base::kPartRows && row + i < end; i += kThreadsPerWarp / kPiecesOfRow) {
            const uint8_t* source = slot + Base::swizzled(i, lane_col);
            uint8_t* target = destination + (row + i) * pitch;
            if constexpr (Base::kAdds) {
                // By a thread, as by TMA, sums of subnormal numbers are exact; red.global.add makes zeros of them (H200,
                // 2026-11-26).
                const float4 piece = *reinterpret_cast<const float4*>(source);
                const float4 there = *reinterpret_cast<const float4*>(target);
                *reinterpret_cast<float4*>(target) = {there.x + piece.x, there.y + piece.y, there.z + piece.z,
                                                      there.w + piece.w};
            } else {
                *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
            }
        }
    }
};

}  // namespace fp8gemm
