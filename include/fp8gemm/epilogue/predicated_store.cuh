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

public:
    static constexpr uint32_t kStoreWarps = 0;

    struct SharedStorage {
        FP8GEMM_DEVICE void initialize() {}
    };

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
            constexpr typename Fragment<Config>::WholeTile kWholeTile{0, 0};
            addends.add(tile, kWholeTile, accumulators);
            const uint32_t end = tile.end_of_d(m_);
            fragment_.for_each_pair(tile, kWholeTile, accumulators,
                                    [this, end](uint32_t row, uint32_t col, float first, float second) {
                                        if (row < end) {
                                            store_pair(d_ + row * stride_m_, col, convert(first, second));
                                        }
                                    });
        }

    private:
        FP8GEMM_DEVICE void store_pair(Storage* row, uint32_t col, ElementPair<Storage> pair) const {
            Storage* target = row + col * stride_n_;
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
