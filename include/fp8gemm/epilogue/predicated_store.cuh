// Epilogue for outputs that TMA cannot write: any base address, any strides, element by element from registers.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"
#include "fp8gemm/ptx/stmatrix.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/scheduler/persistent.cuh"

namespace fp8gemm {

template <class Config>
class PredicatedStore {
    using Shape = TileShape<Config>;

public:
    static constexpr uint32_t kStoreWarps = 0;

    struct SharedStorage {
        FP8GEMM_DEVICE void initialize() {}
    };

    class Writer {
        uint16_t* d_;
        int64_t stride_m_;
        int64_t stride_n_;
        uint32_t m_;
        uint32_t warp_row_;
        uint32_t warp_col_;

    public:
        template <class Params>
        FP8GEMM_DEVICE Writer(const Params& params, SharedStorage&, uint32_t warpgroup, uint32_t warp)
            : d_(static_cast<uint16_t*>(params.d)),
              stride_m_(params.d_stride_m),
              stride_n_(params.d_stride_n),
              m_(params.m) {
            const WarpgroupOrigin<Shape, Config> origin(warpgroup);
            warp_row_ = origin.row + first_row_of_warp(warp);
            warp_col_ = origin.col;
        }

        FP8GEMM_DEVICE void write(TileCoordinate tile, const typename Shape::Accumulators& accumulators) {
            const uint32_t lane = ptx::lane_index();
            const uint32_t row = tile.m * Shape::kBlockM + warp_row_ + lane / 4;
            const uint32_t col = tile.n * Shape::kBlockN + warp_col_ + lane % 4 * 2;
#pragma unroll
            for (uint32_t m = 0; m < Shape::kWavesM; ++m) {
#pragma unroll
                for (uint32_t n = 0; n < Shape::kWavesN; ++n) {
#pragma unroll
                    for (uint32_t i = 0; i < Shape::kWaveRegisters; i += 4) {
                        const float* s = &accumulators[m][n][i];
                        const uint32_t pair_row = row + m * Shape::kWaveM;
                        const uint32_t pair_col = col + n * Shape::kWaveN + i * 2;
                        store_pair(pair_row, pair_col, ptx::pack_bfloat16(s[0], s[1]));
                        store_pair(pair_row + 8, pair_col, ptx::pack_bfloat16(s[2], s[3]));
                    }
                }
            }
        }

    private:
        FP8GEMM_DEVICE void store_pair(uint32_t row, uint32_t col, uint32_t pair) const {
            if (row < m_) {
                uint16_t* target = d_ + row * stride_m_ + col * stride_n_;
                if (col < Config::kN) {
                    target[0] = static_cast<uint16_t>(pair);
                }
                if (col + 1 < Config::kN) {
                    target[stride_n_] = static_cast<uint16_t>(pair >> 16);
                }
            }
        }
    };

    /// There are no store warps to run this.
    template <class Params>
    static FP8GEMM_DEVICE void drain(const Params&, SharedStorage&, PersistentSchedule<Config>, uint32_t) {}
};

}  // namespace fp8gemm
