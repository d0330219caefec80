// Scales of A that are in registers before their K block is multiplied: see BlockScales::kAhead.
#pragma once

#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/ptx/memory.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

/// Of a thread's two rows in each of the waves above one another.
template <class Config>
class ScalesAhead {
    using Shape = TileShape<Config>;

    float values_[Shape::kWavesM][2];

public:
    FP8GEMM_DEVICE ScalesAhead() {
        if constexpr (Shape::kPassesOver) {  // `loaded` may then be asked for first
#pragma unroll
            for (uint32_t m = 0; m < Shape::kWavesM; ++m) {
                values_[m][0] = values_[m][1] = 0.0f;
            }
        }
    }

    /// Asks for them if their stage is full. `first` is that of the thread's first row; they are waited for where they are
    /// used.
    FP8GEMM_DEVICE void load(bool is_full, const float& first) {
        const uint32_t source = ptx::shared_address(&first);
        load_wave<0>(is_full, source);
    }

    /// Those of the upper and the lower row of a wave.
    FP8GEMM_DEVICE const float* of_wave(uint32_t m) const { return values_[m]; }

    /// What is made of all of them, and so is there when they are.
    FP8GEMM_DEVICE uint32_t loaded() const {
        uint32_t bits = 0;
#pragma unroll
        for (uint32_t m = 0; m < Shape::kWavesM; ++m) {
            bits |= __float_as_uint(values_[m][0]) | __float_as_uint(values_[m][1]);
        }
        return bits;
    }

private:
    template <uint32_t kWave>
    FP8GEMM_DEVICE void load_wave(bool is_full, uint32_t source) {
        if constexpr (kWave < Shape::kWavesM) {
            constexpr uint32_t kOffset = kWave * Shape::kWaveM * sizeof(float);
            ptx::load_shared_if<kOffset>(is_full, source, values_[kWave][0]);
            ptx::load_shared_if<kOffset + 8 * sizeof(float)>(is_full, source, values_[kWave][1]);
            load_wave<kWave + 1>(is_full, source);
        }
    }
};

}  // namespace fp8gemm
