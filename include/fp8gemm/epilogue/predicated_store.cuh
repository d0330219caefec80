// Epilogue for outputs that TMA cannot write: any base address, any strides, element by element from registers.
#pragma once

#include "fp8gemm/epilogue/addends.cuh"
#include "fp8gemm/epilogue/element.cuh"
#include "fp8gemm/epilogue/fragment.cuh"
#include "fp8gemm/scheduler/tile.cuh"
#include "fp8gemm/trace/tracer.cuh"

namespace fp8gemm {

template <class Config>
class PredicatedStore {
    using Shape = TileShape<Config>;
    using Element = OutputElement<Config::kOutput>;
    using Storage = typename Element::Storage;
    static_assert(!Config::kHalfColumns, "columns of half a tile are stored by TMA");

public:
    static constexpr uint32_t kStoreWarps = 0;

    struct SharedStorage {
        FP8GEMM_DEVICE void initialize() {}
    };

    template <class Params>
    static FP8GEMM_DEVICE void prefetch_maps(const Params&) {}

    class Writer : Tracer<Config, Track::kEpilogue> {
        Fragment<Config> fragment_;
        Storage* d_;
        int64_t stride_m_;
        int64_t stride_n_;
        uint32_t m_;

    public:
        template <class Params>
        FP8GEMM_DEVICE Writer(const Params& params, SharedStorage&, uint32_t warpgroup, uint32_t warp)
            : fragment_(warpgroup, warp),
              d_(static_cast<Storage*>(params.d)),
              stride_m_(params.d_stride_m),
              stride_n_(params.d_stride_n),
              m_(params.m) {}

        template <class Tile>
        FP8GEMM_DEVICE void write(const Tile& tile, const Addends<Config>& addends,
                                  typename Shape::Accumulators& accumulators) {
            this->mark_tile(tile);
            this->mark(Activity::kStage, 0);
#pragma unroll
            for (uint32_t row = 0; row < Shape::kWarpgroupRows; row += Shape::kWaveM) {
#pragma unroll
                for (uint32_t col = 0; col < Shape::kWarpgroupCols; col += Addends<Config>::kCols) {
                    const Part<Addends<Config>::kCols> part{row, col};
                    addends.add(tile, part, accumulators);
                    store(tile, part, accumulators);
                }
            }
        }

    private:
        template <class Tile, uint32_t kCols>
        FP8GEMM_DEVICE void store(const Tile& tile, Part<kCols> part,
                                  const typename Shape::Accumulators& accumulators) {
            const uint32_t row = fragment_.row(tile, part), end = tile.end_of_d(m_);
            const uint32_t col = fragment_.col(tile, part);
            Storage* upper = d_ + row * stride_m_ + col * stride_n_;
            Storage* lower = upper + 8 * stride_m_;
#pragma unroll
            for (uint32_t i = 0; i < kCols / 8; ++i) {
                const float* four = Fragment<Config>::values(accumulators, part, i);
                if (row < end) {
                    store_pair(upper + 8 * i * stride_n_, col + 8 * i, convert(four[0], four[1]));
                }
                if (row + 8 < end) {
                    store_pair(lower + 8 * i * stride_n_, col + 8 * i, convert(four[2], four[3]));
                }
            }
        }

        FP8GEMM_DEVICE void store_pair(Storage* target, uint32_t col, ElementPair<Storage> pair) const {
            if (col < Config::kN) {
                target[0] = pair.first;
            }
            if (col + 1 < Config::kN) {
                target[stride_n_] = pair.second;
            }
        }

        FP8GEMM_DEVICE static ElementPair<Storage> convert(float first, float second) {
            if constexpr (sizeof(Storage) == sizeof(float)) {
                return {first, second};
            } else {
                const uint32_t packed = Element::pack(first, second);
                return {static_cast<uint16_t>(packed), static_cast<uint16_t>(packed >> 16)};
            }
        }
    };

    /// There are no store warps to run this.
    template <class Params, class Schedule>
    static FP8GEMM_DEVICE void drain(const Params&, SharedStorage&, Schedule, uint32_t) {}
};

}  // namespace fp8gemm
