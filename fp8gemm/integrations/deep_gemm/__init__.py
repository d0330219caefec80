"""DeepGEMM's names on fp8gemm: ``import fp8gemm.integrations.deep_gemm as deep_gemm``.

What code written for DeepGEMM calls on SM90 GPUs for FP8: dense and grouped products, layouts of scales, casts. Names
of arguments, their order and defaults are DeepGEMM's (2.8), and so is what they mean and what is refused;
docs/deep_gemm.md says where the two differ. What DeepGEMM has beside that (bfloat16 products, attention, FP4) is not
here; after `install` ``import deep_gemm`` gives these functions, and another DeepGEMM's for the rest.
"""

from fp8gemm.integrations.deep_gemm import testing, utils
from fp8gemm.integrations.deep_gemm.arguments import RefusedError
from fp8gemm.integrations.deep_gemm.batched import fp8_einsum
from fp8gemm.integrations.deep_gemm.cublaslt import cublaslt_gemm_nt
from fp8gemm.integrations.deep_gemm.dense import fp8_gemm_nn, fp8_gemm_nt, fp8_gemm_tn, fp8_gemm_tt
from fp8gemm.integrations.deep_gemm.grouped import (
    k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous,
    m_grouped_fp8_gemm_nn_contiguous,
    m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked,
)
from fp8gemm.integrations.deep_gemm.installing import answers, install, uninstall
from fp8gemm.integrations.deep_gemm.older import (
    gemm_fp8_fp8_bf16_nt,
    get_col_major_tma_aligned_tensor,
    m_grouped_gemm_fp8_fp8_bf16_nt_contiguous,
    m_grouped_gemm_fp8_fp8_bf16_nt_masked,
    wgrad_gemm_fp8_fp8_fp32_nt,
)
from fp8gemm.integrations.deep_gemm.other import AbsentError
from fp8gemm.integrations.deep_gemm.runtime import (
    get_num_sms,
    get_pdl,
    get_tc_util,
    set_block_size_multiple_of,
    set_ignore_compile_dims,
    set_num_sms,
    set_pdl,
    set_tc_util,
    use_deterministic_algorithms,
)
from fp8gemm.integrations.deep_gemm.testing import calc_diff
from fp8gemm.integrations.deep_gemm.utils import (
    align,
    ceil_div,
    ceil_to_ue8m0,
    get_k_alignment_for_contiguous_layout,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_mn_major_tma_aligned_tensor,
    get_theoretical_mk_alignment_for_contiguous_layout,
    get_tma_aligned_size,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp8,
    set_mk_alignment_for_contiguous_layout,
)
from fp8gemm.integrations.deep_gemm.utils.layout import transform_sf_into_required_layout

# The names that DeepGEMM has for the same functions, because there they take FP4 too.
fp8_fp4_gemm_nt, fp8_fp4_gemm_nn = fp8_gemm_nt, fp8_gemm_nn
fp8_fp4_gemm_tn, fp8_fp4_gemm_tt = fp8_gemm_tn, fp8_gemm_tt
m_grouped_fp8_fp4_gemm_nt_contiguous = m_grouped_fp8_gemm_nt_contiguous
m_grouped_fp8_fp4_gemm_nn_contiguous = m_grouped_fp8_gemm_nn_contiguous
m_grouped_fp8_fp4_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked

__version__ = "2.8.1"
"""The version of DeepGEMM whose names these are."""

__all__ = [
    "AbsentError",
    "RefusedError",
    "align",
    "answers",
    "calc_diff",
    "ceil_div",
    "ceil_to_ue8m0",
    "cublaslt_gemm_nt",
    "fp8_einsum",
    "fp8_fp4_gemm_nn",
    "fp8_fp4_gemm_nt",
    "fp8_fp4_gemm_tn",
    "fp8_fp4_gemm_tt",
    "fp8_gemm_nn",
    "fp8_gemm_nt",
    "fp8_gemm_tn",
    "fp8_gemm_tt",
    "fp8_m_grouped_gemm_nt_masked",
    "gemm_fp8_fp8_bf16_nt",
    "get_col_major_tma_aligned_tensor",
    "get_k_alignment_for_contiguous_layout",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_pdl",
    "get_tc_util",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "install",
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
    "set_block_size_multiple_of",
    "set_ignore_compile_dims",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "set_tc_util",
    "testing",
    "transform_sf_into_required_layout",
    "uninstall",
    "use_deterministic_algorithms",
    "utils",
    "wgrad_gemm_fp8_fp8_fp32_nt",
]
