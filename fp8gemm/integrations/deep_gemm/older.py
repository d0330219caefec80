"""The names that DeepGEMM had before its version 2, which some callers still look for."""

from __future__ import annotations

from torch import Tensor

from fp8gemm.integrations.deep_gemm.arguments import Pair
from fp8gemm.integrations.deep_gemm.dense import fp8_gemm_nt
from fp8gemm.integrations.deep_gemm.grouped import m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_masked
from fp8gemm.integrations.deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor

get_col_major_tma_aligned_tensor = get_mn_major_tma_aligned_tensor


def gemm_fp8_fp8_bf16_nt(lhs: Pair, rhs: Pair, out: Tensor) -> None:
    """`fp8_gemm_nt` with 128x128 scales of B."""
    fp8_gemm_nt(lhs, rhs, out)


def wgrad_gemm_fp8_fp8_fp32_nt(lhs: Pair, rhs: Pair, out: Tensor) -> None:
    """`fp8_gemm_nt` with 1x128 scales of both, added to ``out``, (M, N) float32."""
    fp8_gemm_nt(lhs, rhs, out, c=out, recipe=(1, 1, 128))


def m_grouped_gemm_fp8_fp8_bf16_nt_contiguous(lhs: Pair, rhs: Pair, out: Tensor, m_indices: Tensor) -> None:
    """`m_grouped_fp8_gemm_nt_contiguous` with the group of each row."""
    m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, out, m_indices)


def m_grouped_gemm_fp8_fp8_bf16_nt_masked(lhs: Pair, rhs: Pair, out: Tensor, masked_m: Tensor, expected_m: int) -> None:
    """`m_grouped_fp8_gemm_nt_masked`."""
    m_grouped_fp8_gemm_nt_masked(lhs, rhs, out, masked_m, expected_m)
