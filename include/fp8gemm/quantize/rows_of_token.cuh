// The rows that a token goes to, one for each of its experts.
#pragma once

#include "fp8gemm/common/types.cuh"

namespace fp8gemm {

/// By whole warps, for the same token: each lane asks for one row, as early as it can, and tells the others of it.
class RowsOfToken {
public:
    /// `rows` are (tokens, top_k).
    FP8GEMM_DEVICE RowsOfToken(const int64_t* rows, uint32_t token, uint32_t top_k, uint32_t lane)
        : rows_(rows + static_cast<int64_t>(token) * top_k), top_k_(top_k), lane_(lane), own_(load(0)) {}

    /// Calls `visit(row)` for each, in order.
    template <class Visit>
    FP8GEMM_DEVICE void for_each(const Visit& visit) {
        for (uint32_t k = 0; k < top_k_; ++k) {
            if (k > 0 && k % kLanes == 0) {
                own_ = load(k);
            }
            visit(__shfl_sync(0xffffffffu, own_, k % kLanes));
        }
    }

private:
    static constexpr uint32_t kLanes = 32;

    /// This lane's, of those from the k-th on.
    FP8GEMM_DEVICE uint32_t load(uint32_t k) const {
        return k + lane_ < top_k_ ? static_cast<uint32_t>(rows_[k + lane_]) : 0;
    }

    const int64_t* rows_;
    uint32_t top_k_;
    uint32_t lane_;
    uint32_t own_;
};

}  // namespace fp8gemm
