"""What the operators compute: products and quantisers of tensors with memory, which nobody traces.

Each room of products is imported by the first call that needs it: to register operators is part of ``import fp8gemm``,
which is to be quick.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from fp8gemm.ops import register


@cache
def _dense() -> Any:
    from fp8gemm.products import dense

    return dense


@cache
def _grouped() -> Any:
    from fp8gemm.products import grouped_products

    return grouped_products


@cache
def _quantize() -> Any:
    from fp8gemm.products import quantize

    return quantize


@cache
def _routing() -> Any:
    from fp8gemm.products import routing

    return routing


def _gemm(*args: Any) -> Any:
    *operands, out_dtype, batch_invariant, static_weights = args
    return _dense().multiply((*operands, None), (out_dtype, batch_invariant, static_weights))


def _gemm_out(*args: Any, out: Tensor) -> None:
    *operands, batch_invariant, static_weights = args
    _dense().multiply((*operands, out), (out.dtype, batch_invariant, static_weights))


def _gemm_grouped(*args: Any) -> Any:
    *operands, out_dtype, expected_m, batch_invariant = args
    return _grouped().multiply_grouped((*operands, None), (out_dtype, expected_m, batch_invariant))


def _gemm_grouped_out(*args: Any, out: Tensor) -> None:
    *operands, expected_m, batch_invariant = args
    _grouped().multiply_grouped((*operands, out), (out.dtype, expected_m, batch_invariant))


def _gemm_masked(*args: Any) -> Any:
    *operands, out_dtype, expected_m, batch_invariant = args
    return _grouped().multiply_masked((*operands, None), (out_dtype, expected_m, batch_invariant))


def _gemm_masked_out(*args: Any, out: Tensor) -> None:
    *operands, expected_m, batch_invariant = args
    _grouped().multiply_masked((*operands, out), (out.dtype, expected_m, batch_invariant))


def _gemm_k_grouped(*args: Any) -> Any:
    return _grouped().multiply_k_grouped((*args, None))


def _gemm_k_grouped_out(*args: Any, out: Tensor) -> None:
    _grouped().multiply_k_grouped((*args, out))


register(
    {
        "gemm": _gemm,
        "gemm_out": _gemm_out,
        "gemm_grouped": _gemm_grouped,
        "gemm_grouped_out": _gemm_grouped_out,
        "gemm_masked": _gemm_masked,
        "gemm_masked_out": _gemm_masked_out,
        "gemm_k_grouped": _gemm_k_grouped,
        "gemm_k_grouped_out": _gemm_k_grouped_out,
        "quantize_activation": lambda x, counts=None: _quantize().direct_activation(x, counts),
        "quantize_activation_out": lambda x, codes, scales: _quantize().direct_activation_out(x, codes, scales),
        "quantize_weight": lambda w: _quantize().direct_weight(w),
        "quantize_with_transpose": lambda x: _quantize().direct_with_transpose(x),
        "quantize_silu_mul": lambda x, counts=None: _quantize().direct_silu_mul(x, counts),
        "quantize_rms_norm": lambda x, weight, eps: _quantize().direct_rms_norm(x, weight, eps),
        "quantize_add_rms_norm": lambda x, residual, weight, eps: _quantize().direct_add_rms_norm(
            x, residual, weight, eps
        ),
        "route": lambda *args: _routing().direct_route(*args),
        "quantize_permuted": lambda *args: _routing().direct_quantize_permuted(*args),
        "copy_to_rows": lambda *args: _routing().direct_copy_to_rows(*args),
        "unpermute": lambda *args: _routing().direct_unpermute(*args),
    }
)
