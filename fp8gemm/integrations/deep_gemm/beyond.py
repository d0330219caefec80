"""What DeepGEMM 2.8.1 has that this package has not, and what it is for: names for messages and for `fp8gemm info`."""

from __future__ import annotations

BEYOND: dict[str, tuple[str, ...]] = {
    "attention logits": (
        "fp8_fp4_mqa_logits",
        "fp8_fp4_paged_mqa_logits",
        "fp8_fp4_paged_sparse_mqa_logits",
        "fp8_fp4_sparse_mqa_logits",
        "get_mqa_logits_metadata",
        "get_paged_mqa_logits_metadata",
        "get_paged_sparse_mqa_logits_metadata",
        "get_sparse_mqa_logits_metadata",
    ),
    "hyper-connections": ("mega_mhc", "tf32_hc_prenorm_gemm"),
    "Mega-MoE": (
        "NVFP4SymmBuffer",
        "SymmBuffer",
        "bf16_mega_gate",
        "bf16_mega_moe",
        "fp4_fp4_mega_moe",
        "fp8_fp4_mega_moe",
        "get_block_m_for_mega_moe",
        "get_block_m_for_nvfp4_mega_moe",
        "get_symm_buffer_for_mega_moe",
        "nvfp4_mega_moe",
        "transform_weights_for_mega_moe",
    ),
    "bfloat16 products": (
        "batched_symm",
        "batched_syrk",
        "bf16_gemm_nn",
        "bf16_gemm_nt",
        "bf16_gemm_tn",
        "bf16_gemm_tt",
        "cublaslt_gemm_nn",
        "cublaslt_gemm_tn",
        "cublaslt_gemm_tt",
        "einsum",
        "k_grouped_bf16_gemm_tn_contiguous",
        "m_grouped_bf16_gemm_nn_contiguous",
        "m_grouped_bf16_gemm_nt_contiguous",
        "m_grouped_bf16_gemm_nt_masked",
    ),
    "SM100": (
        "cublaslt_nvfp4_gemm_nt",
        "epilogue",
        "fp4_gemm_nt",
        "k_grouped_fp4_gemm_nt_contiguous",
        "k_grouped_fp8_gemm_tn_contiguous",
        "m_grouped_fp4_gemm_nt_contiguous",
        "m_grouped_fp4_gemm_nt_masked",
        "pack_ue8m0_to_int",
        "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
        "get_mn_major_tma_aligned_packed_ue8m0_tensor",
        "per_token_cast_to_fp4",
        "per_token_cast_to_nvfp4",
        "transpose_packed_fp4",
        "unpack_e4m3_sf_from_int",
        "unpack_ue8m0_from_int",
    ),
    "locality domains": (
        "destroy_localizer",
        "get_num_locality_domains",
        "is_localization_available",
        "is_localized",
        "localize",
    ),
    "tools": (
        "cast_back_from_fp4",
        "cast_back_from_fp8",
        "init_dist",
        "per_custom_dims_cast_to_fp8",
        "shutdown",
        "uneven_all_gather",
    ),
}
"""Names of the package and of what it takes from ``utils``, by what they are for."""

PURPOSES = {name: purpose for purpose, names in BEYOND.items() for name in names}

REFUSED = {
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "k_grouped_fp8_gemm_tn_contiguous",
    "per_token_cast_to_fp4",
    "transpose_packed_fp4",
}
"""Functions that this package has to refuse them, with a reason: another DeepGEMM's come before them."""
