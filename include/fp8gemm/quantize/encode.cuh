// From values to their block's scale and e4m3 codes, as fp8gemm/reference/quantize.py says.
#pragma once

#include "fp8gemm/ptx/arithmetic.cuh"
#include "fp8gemm/quantize/lanes.cuh"

namespace fp8gemm {

/// The largest absolute value of eight; NaN if one is.
FP8GEMM_DEVICE float largest(const LaneValues& values) {
    float amax = 0;
#pragma unroll
    for (float value : values.value) {
        amax = ptx::max_or_nan(amax, fabsf(value));
    }
    return amax;
}

/// The largest of `kLanes` neighbouring lanes' values, in each of them. By whole warps.
template <uint32_t kLanes>
FP8GEMM_DEVICE float largest_of_lanes(float amax) {
#pragma unroll
    for (uint32_t mask = kLanes / 2; mask > 0; mask /= 2) {
        amax = ptx::max_or_nan(amax, ptx::exchange(amax, mask));
    }
    return amax;
}

/// The multiplier of a block whose largest absolute value is `amax`.
FP8GEMM_DEVICE float scale_of(float amax) {
    constexpr float kSmallest = 0x1p-126f;
    const float scale = ptx::max_or_nan(amax * (1.0f / 448.0f), kSmallest);
    return amax == 0 ? 1.0f : scale;
}

/// Divides by a block's scale, each quotient rounded to nearest even, as if by a true division.
///
/// NOTE: A division of its own for each value takes twice as many instructions as memory gives time for. Here they share
/// the reciprocal r. The first estimate x r is within 1.5 units in the last place, which the first correction makes less
/// than one; from such an estimate, and the correctly rounded r, a second one gives the correctly rounded quotient
/// (Markstein, IBM J. Res. Dev. 34, 1990). The negated remainder keeps the sign of a zero.
class ExactDivider {
public:
    FP8GEMM_DEVICE explicit ExactDivider(float scale) {
        // A remainder of values this small would be subnormal and lose bits; multiplied by a power of two, none does.
        shift_ = scale < 0x1p-96f ? 0x1p64f : 1.0f;
        divisor_ = scale * shift_;
        reciprocal_ = ptx::reciprocal(divisor_);
        // x / Inf is 0 and Inf / Inf is NaN; so are x * 0 and Inf * 0, but a remainder would be NaN for both.
        divisor_ = scale == __int_as_float(0x7f800000) ? 0.0f : divisor_;
    }

    FP8GEMM_DEVICE float operator()(float x) const {
        x *= shift_;
        const float estimate = x * reciprocal_;
        return corrected(x, corrected(x, estimate));
    }

private:
    FP8GEMM_DEVICE float corrected(float x, float quotient) const {
        return fmaf(-fmaf(quotient, divisor_, -x), reciprocal_, quotient);
    }

    float shift_;
    float divisor_;
    float reciprocal_;
};

/// Multiplies by the reciprocal: within 3 units in the last place, for values that are rounded on their way here anyway.
class ApproximateDivider {
public:
    FP8GEMM_DEVICE explicit ApproximateDivider(float scale) : reciprocal_(ptx::approximate_reciprocal(scale)) {}

    FP8GEMM_DEVICE float operator()(float x) const { return x * reciprocal_; }

private:
    float reciprocal_;
};

/// Codes of eight values in their order, the first in the lowest byte.
template <class Divider>
FP8GEMM_DEVICE uint2 encode(const LaneValues& values, const Divider& divide) {
    uint32_t pairs[kValuesPerLane / 2];
#pragma unroll
    for (uint32_t i = 0; i < kValuesPerLane / 2; ++i) {
        pairs[i] = ptx::pack_e4m3(divide(values.value[2 * i]), divide(values.value[2 * i + 1]));
    }
    return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

}  // namespace fp8gemm
