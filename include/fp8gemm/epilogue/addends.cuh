// Epilogue: what is added to the product in FP32 before it is rounded, C first and then the bias.
//
// Each term is a policy that Config chooses by its element type; one that is not there takes no code and no registers.
// Both are read by the consumers themselves, each thread the elements that it holds the sums of. That also makes it safe
// for the output to be C: no thread but the one that writes an element reads it, and it does so first.
#pragma once

#include "fp8gemm/epilogue/element.cuh"
#include "fp8gemm/epilogue/fragment.cuh"

namespace fp8gemm {

/// A term that is not there.
template <class Config>
class NoAddend {
public:
    template <class Params>
    FP8GEMM_DEVICE explicit NoAddend(const Params&) {}

    template <class Tile, uint32_t kRows, uint32_t kCols>
    FP8GEMM_DEVICE void add(Fragment<Config>, const Tile&, Part<kRows, kCols>,
                            typename TileShape<Config>::Accumulators&) const {}
};

/// C (M, N), of any strides. With TMA store the host has seen to it that pairs of columns are aligned and whole.
template <class Config, Addend kType = Config::kC>
class MatrixAddend {
    using Shape = TileShape<Config>;
    using Element = AddendElement<kType>;
    static constexpr bool kPairs = Config::kStore == StoreKind::kTma;
    static_assert(!kPairs || Config::kN % 2 == 0, "a pair of columns would cross the end of a row");

    const typename Element::Storage* c_;
    int64_t stride_m_;
    int64_t stride_n_;
    uint32_t m_;

public:
    template <class Params>
    FP8GEMM_DEVICE explicit MatrixAddend(const Params& params)
        : c_(static_cast<const typename Element::Storage*>(params.c)),
          stride_m_(params.c_stride_m),
          stride_n_(params.c_stride_n),
          m_(params.m) {}

    template <class Tile, uint32_t kRows, uint32_t kCols>
    FP8GEMM_DEVICE void add(Fragment<Config> fragment, const Tile& tile, Part<kRows, kCols> part,
                            typename Shape::Accumulators& accumulators) const {
        const uint32_t end = tile.end_of_d(m_);
        fragment.for_each_pair(tile, part, accumulators,
                               [this, end](uint32_t row, uint32_t col, float& first, float& second) {
                                   if (row < end && col < Config::kN) {
                                       const ElementPair<float> c = load_pair(c_ + row * stride_m_, col);
                                       first += c.first;
                                       second += c.second;
                                   }
                               });
    }

private:
    FP8GEMM_DEVICE ElementPair<float> load_pair(const typename Element::Storage* row, uint32_t col) const {
        if constexpr (kPairs) {
            return Element::load_pair(row + col);
        } else {
            const auto* source = row + col * stride_n_;
            return {Element::load(source), col + 1 < Config::kN ? Element::load(source + stride_n_) : 0.0f};
        }
    }
};

template <class Config>
class MatrixAddend<Config, Addend::kNone> : public NoAddend<Config> {
    using NoAddend<Config>::NoAddend;
};

/// The bias (N,), the same for every row; contiguous.
template <class Config, Addend kType = Config::kBias>
class BiasAddend {
    using Shape = TileShape<Config>;
    using Element = AddendElement<kType>;

    const typename Element::Storage* bias_;

public:
    template <class Params>
    FP8GEMM_DEVICE explicit BiasAddend(const Params& params)
        : bias_(static_cast<const typename Element::Storage*>(params.bias)) {}

    template <class Tile, uint32_t kRows, uint32_t kCols>
    FP8GEMM_DEVICE void add(Fragment<Config> fragment, const Tile& tile, Part<kRows, kCols> part,
                            typename Shape::Accumulators& accumulators) const {
        fragment.for_each_pair(tile, part, accumulators, [this](uint32_t, uint32_t col, float& first, float& second) {
            first += col < Config::kN ? Element::load(bias_ + col) : 0.0f;
            second += col + 1 < Config::kN ? Element::load(bias_ + col + 1) : 0.0f;
        });
    }
};

template <class Config>
class BiasAddend<Config, Addend::kNone> : public NoAddend<Config> {
    using NoAddend<Config>::NoAddend;
};

/// All terms, in the order of the contract.
template <class Config>
class Addends {
    Fragment<Config> fragment_;
    MatrixAddend<Config> c_;
    BiasAddend<Config> bias_;

public:
    template <class Params>
    FP8GEMM_DEVICE Addends(const Params& params, uint32_t warpgroup, uint32_t warp)
        : fragment_(warpgroup, warp), c_(params), bias_(params) {}

    template <class Tile, uint32_t kRows, uint32_t kCols>
    FP8GEMM_DEVICE void add(const Tile& tile, Part<kRows, kCols> part,
                            typename TileShape<Config>::Accumulators& accumulators) const {
        c_.add(fragment_, tile, part, accumulators);
        bias_.add(fragment_, tile, part, accumulators);
    }
};

}  // namespace fp8gemm
