// From the expert of each (token, k) to its row among rows that are sorted by expert: a stable counting sort of which
// nothing depends on who comes first. Flat indices token * top_k + k are divided into chunks, one for each CTA. A single
// chunk is counted and placed by one launch of RouteTokens; of several, CountRoutes counts each first, in one of its own.
//
// Warp roles
//   all      each warp has some neighbouring steps of the chunk, 32 flat indices each; then each thread some neighbouring
//            groups
//
// Shared memory
//   of_warps  of each warp, how many indices of each group it has; then, how many the warps before it have. 16 bits: a
//             chunk has fewer than 2^16 indices
//   begins    the row at which this chunk's indices of each group begin
//   sums      of each warp's groups, how many indices they have: for the scan
//
// Barriers, __syncthreads() each
//   1  every warp has counted its indices             -> of_warps may be read across warps
//   2  every warp has left the sum of its groups      -> sums may be read
//   3  every thread has written its groups' of_warps and begins -> places may be computed
// Ahead of 1 each warp touches its own row of of_warps alone: __syncwarp() lies between its lanes' reads and writes.
//
// NOTE: The kernel behind this one may start at once; it finds its weights while this one runs. The one ahead of this
// one is waited for before anything is read or written in device memory: the ids come from it, or, of RouteTokens, the
// counts of chunks.
#pragma once

#include "fp8gemm/common/math.cuh"
#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

/// Filled in by the host: fp8gemm/driver/arguments.py knows these offsets. Ids of no group here are one group more.
struct RouteParams {
    const void* ids;       ///< (count,) int32, or int64 if `wide` is 1
    int32_t* counts;       ///< (chunks, groups + 1), of several chunks: how many indices of each group each has
    int32_t* offsets;      ///< (groups + 1,): the first row of each group, and of those of none
    int64_t* rows;         ///< (count,): the row of each index
    uint8_t* kept;         ///< (count,): 1 where it is of some group, else 0
    int64_t first_expert;  ///< the id of group 0
    uint32_t count;
    uint32_t groups;
    uint32_t wide;  ///< 0 or 1
    uint32_t chunks;
};
static_assert(sizeof(RouteParams) == 64, "the host lays out this struct byte by byte");

/// The halves of an id, 0 where it is not there; those of one of 32 bits are both it.
/// NOTE: Without a branch that tells the types apart, so that all loads of a thread are in flight together.
FP8GEMM_DEVICE void load_id(const RouteParams& params, uint32_t index, bool is_there, uint32_t& low, uint32_t& high) {
    const uint32_t* id = static_cast<const uint32_t*>(params.ids) + (static_cast<uint64_t>(index) << params.wide);
    low = is_there ? id[0] : 0;
    high = is_there ? id[params.wide] : 0;
}

FP8GEMM_DEVICE uint32_t group_of(const RouteParams& params, uint32_t low, uint32_t high) {
    const int64_t narrow = static_cast<int32_t>(low);
    const auto wide = static_cast<int64_t>(uint64_t{high} << 32 | low);
    const auto group = static_cast<uint64_t>((params.wide != 0 ? wide : narrow) - params.first_expert);
    return group < params.groups ? static_cast<uint32_t>(group) : params.groups;  // below zero is far above
}

/// A CTA's chunk of indices: their groups, in registers, and which of its warp's of that group each is.
template <class Config>
class ChunkOfRoutes {
    static constexpr uint32_t kLanes = 32, kAllLanes = 0xffffffffu, kNoIndex = 0xffffffffu;
    static constexpr uint32_t kWarps = Config::kThreads / kLanes;
    static constexpr uint32_t kChunk = Config::kThreads * Config::kItems;
    static_assert(kChunk < 1u << 16, "what a warp counts has 16 bits");

public:
    struct SharedStorage {
        uint16_t of_warps[kWarps][Config::kMaxGroups + 1];
        uint32_t begins[Config::kMaxGroups + 1];
        uint32_t sums[kWarps];
    };

    /// Needs nothing that the kernels ahead wrote.
    FP8GEMM_DEVICE ChunkOfRoutes(const RouteParams& params, SharedStorage& shared)
        : params_(params), shared_(shared), lane_(ptx::lane_index()), warp_(ptx::warp_index()) {
        const uint32_t chunk_begin = blockIdx.x * kChunk;
        const uint32_t chunk_end = chunk_begin + minimum(params.count - chunk_begin, kChunk);
        const uint32_t steps_of_warp = ceil_div(ceil_div(chunk_end - chunk_begin, kLanes), kWarps);
        begin_ = minimum(chunk_begin + warp_ * steps_of_warp * kLanes, chunk_end);
        end_ = minimum(begin_ + steps_of_warp * kLanes, chunk_end);
        for (uint32_t group = lane_; group <= params.groups; group += kLanes) {
            shared.of_warps[warp_][group] = 0;
        }
    }

    /// Reads the ids. Other warps' counts may be read when it returns.
    FP8GEMM_DEVICE void count() {
#pragma unroll
        for (uint32_t i = 0; i < Config::kItems; ++i) {
            const uint32_t index = begin_ + i * kLanes + lane_;
            load_id(params_, index, index < end_, group_[i], rank_[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < Config::kItems; ++i) {
            group_[i] = begin_ + i * kLanes + lane_ < end_ ? group_of(params_, group_[i], rank_[i]) : kNoIndex;
        }
        uint16_t (&counts)[Config::kMaxGroups + 1] = shared_.of_warps[warp_];
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < Config::kItems; ++i) {
            if (begin_ + i * kLanes < end_) {
                const uint32_t same = __match_any_sync(kAllLanes, group_[i]);
                const uint32_t before = group_[i] != kNoIndex ? counts[group_[i]] : 0;
                rank_[i] = before + __popc(same & ((1u << lane_) - 1));
                __syncwarp();
                if (group_[i] != kNoIndex && same >> lane_ == 1) {  // the last lane of its group
                    counts[group_[i]] = static_cast<uint16_t>(rank_[i] + 1);
                }
                __syncwarp();
            }
        }
        __syncthreads();
    }

    /// How many of a group this chunk has; the warps' counts become those of the warps before.
    FP8GEMM_DEVICE uint32_t add_up(uint32_t group) {
        uint32_t sum = 0;
#pragma unroll
        for (uint32_t warp = 0; warp < kWarps; ++warp) {
            const uint32_t of_warp = shared_.of_warps[warp][group];
            shared_.of_warps[warp][group] = static_cast<uint16_t>(sum);
            sum += of_warp;
        }
        return sum;
    }

    /// Where each group begins; offsets are written by the first chunk. By all threads.
    FP8GEMM_DEVICE void find_begins() {
        const uint32_t groups_of_thread = ceil_div(params_.groups + 1, Config::kThreads);
        const uint32_t first = threadIdx.x * groups_of_thread;
        const uint32_t end = minimum(first + groups_of_thread, params_.groups + 1);
        uint32_t sum = 0;
        for (uint32_t group = first; group < end; ++group) {
            const uint32_t of_chunk = add_up(group);
            const Sums sums = params_.chunks == 1 ? Sums{0, of_chunk} : of_chunks(group);
            shared_.begins[group] = sum + sums.before;
            sum += sums.all;
        }
        const uint32_t before = sum_of_threads_before(sum);
        for (uint32_t group = first; group < end; ++group) {
            shared_.begins[group] += before;
            if (blockIdx.x == 0) {
                params_.offsets[group] = static_cast<int32_t>(shared_.begins[group]);
            }
        }
        __syncthreads();
    }

    FP8GEMM_DEVICE void store() const {
#pragma unroll
        for (uint32_t i = 0; i < Config::kItems; ++i) {
            if (group_[i] != kNoIndex) {
                const uint32_t index = begin_ + i * kLanes + lane_;
                params_.rows[index] = shared_.begins[group_[i]] + shared_.of_warps[warp_][group_[i]] + rank_[i];
                params_.kept[index] = group_[i] < params_.groups ? 1 : 0;
            }
        }
    }

private:
    /// Of a group's indices: how many the chunks before this one have, and all chunks.
    struct Sums {
        uint32_t before;
        uint32_t all;
    };

    FP8GEMM_DEVICE Sums of_chunks(uint32_t group) const {
        Sums sums{0, 0};
#pragma unroll 8
        for (uint32_t chunk = 0; chunk < params_.chunks; ++chunk) {
            const auto of_chunk = static_cast<uint32_t>(params_.counts[uint64_t{chunk} * (params_.groups + 1) + group]);
            sums.before += chunk < blockIdx.x ? of_chunk : 0;
            sums.all += of_chunk;
        }
        return sums;
    }

    FP8GEMM_DEVICE uint32_t sum_of_threads_before(uint32_t own) {
        uint32_t sum = own;
#pragma unroll
        for (uint32_t distance = 1; distance < kLanes; distance *= 2) {
            const uint32_t before = __shfl_up_sync(kAllLanes, sum, distance);
            sum += lane_ >= distance ? before : 0;
        }
        if (lane_ == kLanes - 1) {
            shared_.sums[warp_] = sum;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t warp = 0; warp < kWarps; ++warp) {
            sum += warp < warp_ ? shared_.sums[warp] : 0;
        }
        return sum - own;
    }

    const RouteParams& params_;
    SharedStorage& shared_;
    uint32_t lane_;
    uint32_t warp_;
    uint32_t begin_;  ///< of this warp's indices
    uint32_t end_;
    uint32_t group_[Config::kItems];
    uint32_t rank_[Config::kItems];
};

/// How many indices of each group each chunk has.
template <class Config>
struct CountRoutes {
    using Params = RouteParams;
    using Chunk = ChunkOfRoutes<Config>;

    static constexpr uint32_t kNumThreads = Config::kThreads;

    static FP8GEMM_DEVICE void run(const Params& params) {
        __shared__ typename Chunk::SharedStorage shared;
        ptx::launch_dependents();
        Chunk chunk(params, shared);
        ptx::wait_for_previous_grids();
        chunk.count();
        int32_t* counts = params.counts + uint64_t{blockIdx.x} * (params.groups + 1);
        for (uint32_t group = threadIdx.x; group <= params.groups; group += kNumThreads) {
            counts[group] = static_cast<int32_t>(chunk.add_up(group));
        }
    }
};

/// The row of each index.
template <class Config>
struct RouteTokens {
    using Params = RouteParams;
    using Chunk = ChunkOfRoutes<Config>;

    static constexpr uint32_t kNumThreads = Config::kThreads;

    static FP8GEMM_DEVICE void run(const Params& params) {
        __shared__ typename Chunk::SharedStorage shared;
        ptx::launch_dependents();
        Chunk chunk(params, shared);
        ptx::wait_for_previous_grids();
        chunk.count();
        chunk.find_begins();
        chunk.store();
    }
};

}  // namespace fp8gemm
