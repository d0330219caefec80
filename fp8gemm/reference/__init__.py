"""Every operation in plain PyTorch, on any device: what runs without a Hopper GPU, and what kernels are held to."""

from fp8gemm.reference.gemm import (
    dequantize_activation,
    dequantize_weight,
    gemm_magnitude,
    gemm_reference,
    round_to_nearest_even,
)
from fp8gemm.reference.quantize import add_rms_norm, quantize_blocks, quantize_rows, rms_norm, silu_mul

__all__ = [
    "add_rms_norm",
    "dequantize_activation",
    "dequantize_weight",
    "gemm_magnitude",
    "gemm_reference",
    "quantize_blocks",
    "quantize_rows",
    "rms_norm",
    "round_to_nearest_even",
    "silu_mul",
]
