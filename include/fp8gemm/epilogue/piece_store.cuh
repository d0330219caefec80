// The end of the swapped orientation's epilogue: a few neighbouring elements of an output row, to which C and the bias are
// added, in this order, before they are rounded and written by one thread.
#pragma once

#include "fp8gemm/epilogue/cluster_reduction.cuh"
#include "fp8gemm/epilogue/element.cuh"

namespace fp8gemm {

template <class Config>
class PieceStore {
    using Element = OutputElement<Config::kOutput>;
    using Storage = typename Element::Storage;
    static constexpr uint32_t kColsOfPiece = ClusterReduction<Config>::kColsOfPiece;
    /// The host has seen to it that rows are contiguous and whole pieces, and pieces aligned; pairs of C likewise.
    static constexpr bool kAligned = Config::kStore == StoreKind::kTma;
    static_assert(Config::kC != Addend::kInPlace, "pieces are written by threads, which have read C");
    static_assert(!kAligned || Config::kN % kColsOfPiece == 0, "a piece would cross the end of a row");

    Storage* d_;
    int64_t d_stride_m_;
    int64_t d_stride_n_;
    const void* c_;
    int64_t c_stride_m_;
    int64_t c_stride_n_;
    const void* bias_;

public:
    template <class Params>
    FP8GEMM_DEVICE explicit PieceStore(const Params& params)
        : d_(static_cast<Storage*>(params.d)),
          d_stride_m_(params.d_stride_m),
          d_stride_n_(params.d_stride_n),
          c_(params.c),
          c_stride_m_(params.c_stride_m),
          c_stride_n_(params.c_stride_n),
          bias_(params.bias) {}

    /// `row` exists; columns from `col` on may not.
    FP8GEMM_DEVICE void write(uint32_t row, uint32_t col, float (&sums)[kColsOfPiece]) const {
        if (col >= Config::kN) {
            return;
        }
        if constexpr (Config::kC != Addend::kNone) {
            using C = AddendElement<Config::kC>;
            add_row<C>(static_cast<const typename C::Storage*>(c_) + row * c_stride_m_, c_stride_n_, col, sums);
        }
        if constexpr (Config::kBias != Addend::kNone) {
            using Bias = AddendElement<Config::kBias>;
            const auto* bias = static_cast<const typename Bias::Storage*>(bias_);
#pragma unroll
            for (uint32_t i = 0; i < kColsOfPiece; ++i) {
                sums[i] += exists(col + i) ? Bias::to_float(bias[col + i]) : 0.0f;
            }
        }
        Storage* target = d_ + row * d_stride_m_;
        if constexpr (kAligned) {
            store_whole(target + col, sums);
        } else {
            store_each(target, col, sums);
        }
    }

private:
    static FP8GEMM_DEVICE bool exists(uint32_t col) { return kAligned || col < Config::kN; }

    template <class C>
    static FP8GEMM_DEVICE void add_row(const typename C::Storage* c, int64_t stride, uint32_t col,
                                       float (&sums)[kColsOfPiece]) {
        if constexpr (kAligned && kColsOfPiece > 1) {
#pragma unroll
            for (uint32_t i = 0; i < kColsOfPiece; i += 2) {
                const auto pair = *reinterpret_cast<const ElementPair<typename C::Storage>*>(c + col + i);
                sums[i] += C::to_float(pair.first);
                sums[i + 1] += C::to_float(pair.second);
            }
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kColsOfPiece; ++i) {
                sums[i] += exists(col + i) ? C::to_float(c[(col + i) * stride]) : 0.0f;
            }
        }
    }

    static FP8GEMM_DEVICE void store_whole(Storage* target, const float (&sums)[kColsOfPiece]) {
        struct alignas(kColsOfPiece * sizeof(Storage)) Piece {
            Storage of[kColsOfPiece];
        };
        Piece piece;
#pragma unroll
        for (uint32_t i = 0; i < kColsOfPiece; ++i) {
            piece.of[i] = convert(sums[i]);
        }
        *reinterpret_cast<Piece*>(target) = piece;
    }

    FP8GEMM_DEVICE void store_each(Storage* row, uint32_t col, const float (&sums)[kColsOfPiece]) const {
#pragma unroll
        for (uint32_t i = 0; i < kColsOfPiece; ++i) {
            if (exists(col + i)) {
                row[(col + i) * d_stride_n_] = convert(sums[i]);
            }
        }
    }

    static FP8GEMM_DEVICE Storage convert(float sum) {
        if constexpr (sizeof(Storage) == sizeof(float)) {
            return sum;
        } else {
            return static_cast<Storage>(Element::pack(sum, 0.0f));
        }
    }
};

}  // namespace fp8gemm
