// The parts of a warpgroup's tile that are staged, and that TMA stores, at a time.
#pragma once

#include "fp8gemm/common/tile_shape.cuh"

namespace fp8gemm {

/// One row of a swizzle pattern wide, so that slots for some of them fit beside a deep ring. The output's map has boxes of
/// this size.
template <class Config>
struct StagedParts {
    using Shape = TileShape<Config>;

    static constexpr uint32_t kRows = Shape::kWaveM;
    static constexpr uint32_t kCols = greatest_common_divisor(Shape::kWarpgroupCols, Config::kStagingCols);
    static constexpr uint32_t kDown = Shape::kWarpgroupRows / kRows;
    static constexpr uint32_t kAcross = Shape::kWarpgroupCols / kCols;
    static constexpr uint32_t kCount = kDown * kAcross;
};

}  // namespace fp8gemm
