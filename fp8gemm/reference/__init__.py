"""Every operation in plain PyTorch, on any device: what runs without a Hopper GPU, and what kernels are held to."""

from fp8gemm.reference.gemm import (
    dequantize_activation,
    dequantize_weight,
    gemm_magnitude,
    gemm_reference,
    round_to_nearest_even,
)
from fp8gemm.reference.grouped import (
    gemm_grouped_reference,
    gemm_k_grouped_reference,
    gemm_masked_reference,
    row_ranges,
)
from fp8gemm.reference.quantize import (
    add_rms_norm,
    keep_rows,
    quantize_blocks,
    quantize_rows,
    quantize_small_blocks,
    quantize_with_transpose,
    rms_norm,
    silu_mul,
)

__all__ = [
    "add_rms_norm",
    "dequantize_activation",
    "dequantize_weight",
    "gemm_grouped_reference",
    "gemm_k_grouped_reference",
    "gemm_magnitude",
    "gemm_masked_reference",
    "gemm_reference",
    "keep_rows",
    "quantize_blocks",
    "quantize_rows",
    "quantize_small_blocks",
    "quantize_with_transpose",
    "rms_norm",
    "round_to_nearest_even",
    "row_ranges",
    "silu_mul",
]
