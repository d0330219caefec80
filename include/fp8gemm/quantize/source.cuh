// What a quantiser of rows takes its values from: the input itself, or the gated product of its halves.
#pragma once

#include "fp8gemm/quantize/encode.cuh"
#include "fp8gemm/quantize/params.cuh"

namespace fp8gemm {

/// `Raw` is what a lane loads for eight values; `values` makes them of it, and `Divider` divides them by their scale.
template <class Config>
struct PlainSource {
    using Input = Lane<Config::kInput>;
    using Storage = typename Input::Storage;
    using Raw = typename Input::Raw;
    using Divider = ExactDivider;

    static FP8GEMM_DEVICE Raw load(const QuantizeParams& params, uint32_t row, uint32_t col) {
        return Input::load(static_cast<const Storage*>(params.x) + row * params.x_stride + col);
    }

    static FP8GEMM_DEVICE LaneValues values(const Raw& raw) { return Input::unpack(raw); }
};

/// silu(gate) * up: gate / (1 + exp(-gate)) * up.
template <class Config>
struct SiluMulSource {
    using Input = Lane<Config::kInput>;
    using Storage = typename Input::Storage;
    using Divider = ApproximateDivider;

    struct Raw {
        typename Input::Raw gate;
        typename Input::Raw up;
    };

    static FP8GEMM_DEVICE Raw load(const QuantizeParams& params, uint32_t row, uint32_t col) {
        const Storage* gate = static_cast<const Storage*>(params.x) + row * params.x_stride + col;
        return {Input::load(gate), Input::load(gate + params.k)};
    }

    static FP8GEMM_DEVICE LaneValues values(const Raw& raw) {
        constexpr float kLog2OfE = 1.4426950408889634f;
        LaneValues gate = Input::unpack(raw.gate);
        const LaneValues up = Input::unpack(raw.up);
#pragma unroll
        for (uint32_t i = 0; i < kValuesPerLane; ++i) {
            const float denominator = 1.0f + ptx::approximate_exp2(-gate.value[i] * kLog2OfE);
            gate.value[i] = gate.value[i] * ptx::approximate_reciprocal(denominator) * up.value[i];
        }
        return gate;
    }
};

template <class Config>
using Source = Conditional<Config::kSource == QuantizeSource::kPlain, PlainSource<Config>, SiluMulSource<Config>>;

}  // namespace fp8gemm
