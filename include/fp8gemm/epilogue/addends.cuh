// Epilogue: what is added to the product in FP32 before it is rounded, C first and then the bias.
//
// Each term is a policy that Config chooses by its element type; one that is not there takes no code and no registers.
// Both are read by the consumers themselves, each thread the elements that it holds the sums of. That also makes it safe
// for the output to be C: no thread but the one that writes an element reads it, and it does so first.
//
// A round trip to memory takes as long as a K block or three, and nothing else goes on meanwhile in the warps that wait. So
// a thread asks for as much at once as it has registers for, and only then adds.
#pragma once

#include "fp8gemm/epilogue/element.cuh"
#include "fp8gemm/epilogue/fragment.cuh"

namespace fp8gemm {

/// A term that is not there.
template <class Config>
class NoAddend {
public:
    struct OfPart {
        template <class AnyPart, class Accumulators>
        FP8GEMM_DEVICE void add_to(Accumulators&, AnyPart) const {}
    };

    template <class Params>
    FP8GEMM_DEVICE explicit NoAddend(const Params&) {}

    template <class Tile, class AnyPart>
    FP8GEMM_DEVICE OfPart load(Fragment<Config>, const Tile&, AnyPart) const {
        return {};
    }
};

/// C (M, N), of any strides. With TMA store the host has seen to it that pairs of columns are aligned and whole.
template <class Config>
class MatrixAddend {
    using Shape = TileShape<Config>;
    using Element = AddendElement<Config::kC>;
    using Storage = typename Element::Storage;
    static constexpr bool kPairs = Config::kStore == StoreKind::kTma;
    static_assert(!kPairs || Config::kN % 2 == 0, "a pair of columns would cross the end of a row");

    const Storage* c_;
    int64_t stride_m_;
    int64_t stride_n_;
    uint32_t m_;

    /// This thread's elements of a part; zeros past the edges of the output.
    template <uint32_t kCols>
    struct OfPart {
        ElementPair<Storage> upper[kCols / 8];
        ElementPair<Storage> lower[kCols / 8];

        FP8GEMM_DEVICE void add_to(typename Shape::Accumulators& accumulators, Part<kCols> part) const {
#pragma unroll
            for (uint32_t i = 0; i < kCols / 8; ++i) {
                float* four = Fragment<Config>::values(accumulators, part, i);
                four[0] += Element::to_float(upper[i].first);
                four[1] += Element::to_float(upper[i].second);
                four[2] += Element::to_float(lower[i].first);
                four[3] += Element::to_float(lower[i].second);
            }
        }
    };

public:
    template <class Params>
    FP8GEMM_DEVICE explicit MatrixAddend(const Params& params)
        : c_(static_cast<const Storage*>(params.c)),
          stride_m_(params.c_stride_m),
          stride_n_(params.c_stride_n),
          m_(params.m) {}

    template <class Tile, uint32_t kCols>
    FP8GEMM_DEVICE OfPart<kCols> load(Fragment<Config> fragment, const Tile& tile, Part<kCols> part) const {
        const uint32_t row = fragment.row(tile, part), end = tile.end_of_d(m_);
        const uint32_t col = fragment.col(tile, part);
        const int64_t stride_n = kPairs ? 1 : stride_n_;
        const Storage* upper = c_ + row * stride_m_ + col * stride_n;
        const Storage* lower = upper + 8 * stride_m_;
        OfPart<kCols> values{};
#pragma unroll
        for (uint32_t i = 0; i < kCols / 8; ++i) {
            load_pair(values.upper[i], upper + 8 * i * stride_n, stride_n, row < end, col + 8 * i);
            load_pair(values.lower[i], lower + 8 * i * stride_n, stride_n, row + 8 < end, col + 8 * i);
        }
        return values;
    }

private:
    /// Without branches, which would come between the loads.
    static FP8GEMM_DEVICE void load_pair(ElementPair<Storage>& pair, const Storage* source, int64_t stride_n,
                                         bool row_exists, uint32_t col) {
        if constexpr (kPairs) {
            if (row_exists & (col < Config::kN)) {
                pair = *reinterpret_cast<const ElementPair<Storage>*>(source);
            }
        } else {
            if (row_exists & (col < Config::kN)) {
                pair.first = source[0];
            }
            if (row_exists & (col + 1 < Config::kN)) {
                pair.second = source[stride_n];
            }
        }
    }
};

/// The bias (N,), the same for every row; contiguous.
template <class Config>
class BiasAddend {
    using Shape = TileShape<Config>;
    using Element = AddendElement<Config::kBias>;
    using Storage = typename Element::Storage;

    const Storage* bias_;

    /// This thread's columns of a part; zeros past the last one of the output.
    template <uint32_t kCols>
    struct OfPart {
        ElementPair<Storage> pairs[kCols / 8];

        FP8GEMM_DEVICE void add_to(typename Shape::Accumulators& accumulators, Part<kCols> part) const {
#pragma unroll
            for (uint32_t i = 0; i < kCols / 8; ++i) {
                float* four = Fragment<Config>::values(accumulators, part, i);
                const float first = Element::to_float(pairs[i].first), second = Element::to_float(pairs[i].second);
                four[0] += first;
                four[1] += second;
                four[2] += first;
                four[3] += second;
            }
        }
    };

public:
    template <class Params>
    FP8GEMM_DEVICE explicit BiasAddend(const Params& params) : bias_(static_cast<const Storage*>(params.bias)) {}

    template <class Tile, uint32_t kCols>
    FP8GEMM_DEVICE OfPart<kCols> load(Fragment<Config> fragment, const Tile& tile, Part<kCols> part) const {
        const uint32_t col = fragment.col(tile, part);
        const Storage* bias = bias_ + col;
        OfPart<kCols> values;
#pragma unroll
        for (uint32_t i = 0; i < kCols / 8; ++i) {
            values.pairs[i].first = col + 8 * i < Config::kN ? bias[8 * i] : Storage{};
            values.pairs[i].second = col + 8 * i + 1 < Config::kN ? bias[8 * i + 1] : Storage{};
        }
        return values;
    }
};

/// All terms, in the order of the contract.
template <class Config>
class Addends {
    using Shape = TileShape<Config>;
    static constexpr uint32_t kAccumulators = Shape::kWavesM * Shape::kWavesN * Shape::kWaveRegisters;

    Fragment<Config> fragment_;
    Conditional<is_read(Config::kC), MatrixAddend<Config>, NoAddend<Config>> c_;
    Conditional<is_read(Config::kBias), BiasAddend<Config>, NoAddend<Config>> bias_;

public:
    /// Columns that are added at once. A thread needs a register for each of its elements of C in them, and for a quarter
    /// as many of the bias.
    static constexpr uint32_t kCols = !is_read(Config::kC) || kAccumulators <= 72
                                          ? Shape::kWarpgroupCols
                                          : greatest_common_divisor(Shape::kWarpgroupCols, 64u);

    template <class Params>
    FP8GEMM_DEVICE Addends(const Params& params, uint32_t warpgroup, uint32_t warp)
        : fragment_(warpgroup, warp), c_(params), bias_(params) {}

    template <class Tile>
    FP8GEMM_DEVICE void add(const Tile& tile, Part<kCols> part, typename Shape::Accumulators& accumulators) const {
        if constexpr (is_read(Config::kC) || is_read(Config::kBias)) {
            const auto c = c_.load(fragment_, tile, part);
            const auto bias = bias_.load(fragment_, tile, part);
            c.add_to(accumulators, part);
            bias.add_to(accumulators, part);
            // NOTE: Keeps the compiler from gathering the loads of all parts at the beginning, where the accumulators leave
            // no registers for them.
            __syncwarp();
        }
    }
};

}  // namespace fp8gemm
