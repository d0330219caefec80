// Fixed-width types, qualifiers and the enumerations that a rendered Config may name.
//
// NVRTC compiles these headers with no include path but our own, so nothing here comes from the CUDA toolkit
// or from the C++ library. The same files compile on the host, where the scheduler is tested.
//
// Words of all these headers:
//   tile     what a CTA computes at a time, kBlockM x kBlockN of the output; a cluster tile is one for each of its CTAs
//   band     a few rows of tiles that are visited together, so that what is in flight shares operands in L2
//   K block  128 columns of K: what has a scale of its own, and is promoted at a time
//   share    the K blocks that one of several has, where warpgroups, CTAs of a cluster or slices divide K
//   slice    with swapped operands, one of the K blocks that a WGMMA multiplies side by side
//   stage    what is loaded and handed back at a time, K blocks of both operands; and its place in the ring
//   step     of a tile, what it takes of one stage; a K block of each share
//   wave     what one chain of WGMMAs computes: 64 rows of a K block; in flight from its start until it is waited for
//   chunk    steps of straight code, which waves in flight do not leave: the main loop goes round in them
//   part     of a warpgroup's tile, what is staged and stored at a time; of an operand, what one CTA of a cluster loads
//   piece    what one thread, or one copy, moves at once: 16 bytes, neighbouring elements of a row, a stage of a weight
#pragma once

#ifdef __CUDACC__
#define FP8GEMM_DEVICE __device__ __forceinline__
#define FP8GEMM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FP8GEMM_HOST_DEVICE inline
#endif

namespace fp8gemm {

using uint8_t = unsigned char;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

static_assert(sizeof(uint16_t) == 2 && sizeof(uint32_t) == 4 && sizeof(uint64_t) == 8, "unexpected data model");

template <bool kCondition, class Then, class Else>
struct ConditionalType {
    using Type = Then;
};

template <class Then, class Else>
struct ConditionalType<false, Then, Else> {
    using Type = Else;
};

/// One of two types, chosen at compile time. The other is named and no more: it need not compile.
template <bool kCondition, class Then, class Else>
using Conditional = typename ConditionalType<kCondition, Then, Else>::Type;

/// What the output is made of.
enum class OutputType { kBfloat16, kFloat16, kFloat32 };

/// What a quantiser reads.
enum class InputType { kBfloat16, kFloat16, kFloat32 };

/// What a quantiser of rows makes codes of.
enum class QuantizeSource {
    kPlain,    ///< the input
    kSiluMul,  ///< silu(gate) * up, the halves of an input twice as wide
};

/// What a term that the epilogue adds (C, the bias) is made of.
enum class Addend {
    kNone,
    kBfloat16,
    kFloat32,
    kInPlace,  ///< FP32 that lies in the output: no thread reads it, the product is added to it in L2
};

/// Whether threads read the term's elements.
FP8GEMM_HOST_DEVICE constexpr bool is_read(Addend term) {
    return term == Addend::kBfloat16 || term == Addend::kFloat32;
}

/// How B is scaled; A always has one scale per row and 128 columns of K.
enum class Scaling {
    kBlock,  ///< one scale per 128x128 block of B
    kRow,    ///< one per row and 128 columns of K, as A has
};

/// Which rows of a product belong together, each group of them with a B of its own.
enum class Grouping {
    kNone,        ///< all: one product
    kContiguous,  ///< rows of A and of the output, group after group
    kMasked,      ///< the first rows of as many as each group has room for
    kColumns,     ///< columns of A and B, group after group, to an output for each
};

/// How the output reaches global memory.
enum class StoreKind {
    kTma,         ///< staged in shared memory, written by bulk tensor copies: 16-byte aligned base and row pitch
    kPredicated,  ///< written element by element from registers: any base, any strides
};

/// A CUtensorMap: opaque to the device, which only ever takes its address.
struct alignas(64) TensorMap {
    uint8_t opaque[128];
};

}  // namespace fp8gemm
