// How CTAs divide one run of bytes that all of them stream: in rounds, one stage each, side by side.
//
// What is read at one time is then one window of memory. The last round is divided as evenly as the others, in whole
// cache lines, so that no CTA is a stage behind the rest at the end.
#pragma once

#include "fp8gemm/common/math.cuh"

namespace fp8gemm {

/// Consecutive bytes, a multiple of 16.
struct Piece {
    uint64_t offset;
    uint32_t bytes;
};

template <class Config>
struct StreamSchedule {
    static constexpr uint64_t kTotalBytes = static_cast<uint64_t>(Config::kN) * Config::kK;
    static constexpr uint32_t kLineBytes = 128;

    static_assert(kTotalBytes % 16 == 0, "bulk copies move multiples of 16 bytes");
    static_assert(Config::kStageBytes % kLineBytes == 0, "a full round divides into whole stages");

    uint32_t cta;
    uint32_t num_ctas;
    uint64_t round_begin = 0;

    FP8GEMM_HOST_DEVICE StreamSchedule(uint32_t cta, uint32_t num_ctas) : cta(cta), num_ctas(num_ctas) {}

    /// Gives this CTA's next piece, at most a stage; false when there is none.
    FP8GEMM_HOST_DEVICE bool next(Piece& piece) {
        const auto round_bytes = static_cast<uint32_t>(
            minimum(static_cast<uint64_t>(num_ctas) * Config::kStageBytes, kTotalBytes - round_begin));
        const uint32_t lines = ceil_div(round_bytes, kLineBytes);
        const uint32_t begin = lines * cta / num_ctas * kLineBytes;
        const uint32_t end = minimum(lines * (cta + 1) / num_ctas * kLineBytes, round_bytes);
        piece = Piece{round_begin + begin, end - begin};
        round_begin += round_bytes;
        return begin < end;
    }
};

}  // namespace fp8gemm
