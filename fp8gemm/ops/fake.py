"""Fake kernels: shapes, dtypes and strides of what each operator returns, and errors for operands that cannot be.

A number of rows may be symbolic, so that arithmetic with it must stay plain; addresses do not exist here, so that only
the operators themselves can refuse an alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.scales import block_count, mn_major_pitch

FP8 = torch.float8_e4m3fn
OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)
_INPUTS = OUTPUTS
_ADDENDS = (torch.bfloat16, torch.float32)
INTEGERS = (torch.int32, torch.int64)


def expect(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[Any, ...], meaning: str) -> None:
    """``tensor`` has one of ``dtypes`` and ``shape``, in which None is any size."""
    fits = tensor.dim() == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if tensor.dtype not in dtypes or not fits:
        raise InputError(
            f"{name}: expected {' or '.join(map(str, dtypes))} of shape {meaning}, got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}"
        )


def expect_output(out_dtype: torch.dtype) -> torch.dtype:
    """The dtype, if products have such an output."""
    if out_dtype not in OUTPUTS:
        raise InputError(f"out_dtype: expected one of {', '.join(map(str, OUTPUTS))}, got {out_dtype}")
    return out_dtype


def expect_depth(name: str, k: int) -> None:
    if k < 16 or k % 16:
        raise InputError(f"{name}: expected K to be a multiple of 16 and at least 16, got K = {k}")


def _operands(
    a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, c: Tensor | None, bias: Tensor | None
) -> tuple[int, int]:
    """M and N of a product, whose operands are checked."""
    fp32 = (torch.float32,)
    expect("b", b, (FP8,), (None, None), "(N, K)")
    n, k = b.shape
    expect_depth("b", k)
    expect("a", a, (FP8,), (None, k), f"(M, K) with K = {k} as in b")
    m = a.shape[0]
    expect("scales_a", scales_a, fp32, (m, block_count(k)), f"(M, ceil(K/128)) = ({m}, {block_count(k)})")
    rows = n if scales_b.dim() == 2 and scales_b.shape[0] == n else block_count(n)
    meaning = f"({block_count(n)}, {block_count(k)}) = (ceil(N/128), ceil(K/128)) or ({n}, {block_count(k)})"
    expect("scales_b", scales_b, fp32, (rows, block_count(k)), meaning)
    if c is not None:
        expect("c", c, _ADDENDS, (m, n), f"(M, N) = ({m}, {n})")
    if bias is not None:
        expect("bias", bias, _ADDENDS, (n,), f"(N,) = ({n},)")
    return m, n


def _gemm(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    batch_invariant: bool | None,
    static_weights: bool,
) -> Tensor:
    shape = _operands(a, scales_a, b, scales_b, c, bias)
    return a.new_empty(shape, dtype=expect_output(out_dtype))


def _gemm_out(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    batch_invariant: bool | None,
    static_weights: bool,
    *,
    out: Tensor,
) -> None:
    m, n = _operands(a, scales_a, b, scales_b, c, bias)
    expect("out", out, _INPUTS, (m, n), f"(M, N) = ({m}, {n})")


def _quantised(x: Tensor, m: int, k: int) -> tuple[Tensor, Tensor]:
    """Codes (M, K), and MN-major scales."""
    scales = x.new_empty_strided((m, block_count(k)), (1, mn_major_pitch(m)), dtype=torch.float32)
    return x.new_empty((m, k), dtype=FP8), scales


def _masked(x: Tensor, counts: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Codes (G, max_m, K), and scales that are MN-major in each group."""
    groups, max_m, _ = x.shape
    expect("counts", counts, INTEGERS, (groups,), f"(G,) = ({groups},)")
    shape, pitch = (groups, max_m, block_count(k)), mn_major_pitch(max_m)
    scales = x.new_empty_strided(shape, (shape[2] * pitch, 1, pitch), dtype=torch.float32)
    return x.new_empty((groups, max_m, k), dtype=FP8), scales


def _quantize_activation(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    if counts is not None:
        expect("x", x, _INPUTS, (None, None, None), "(G, max_m, K)")
        expect_depth("x", x.shape[2])
        return _masked(x, counts, x.shape[2])
    expect("x", x, _INPUTS, (None, None), "(M, K)")
    m, k = x.shape
    expect_depth("x", k)
    return _quantised(x, m, k)


def _quantize_activation_out(x: Tensor, codes: Tensor, scales: Tensor) -> None:
    expect("x", x, _INPUTS, (None, None), "(M, K)")
    m, k = x.shape
    expect_depth("x", k)
    expect("codes", codes, (FP8,), (m, k), f"(M, K) = ({m}, {k})")
    expect("scales", scales, (torch.float32,), (m, block_count(k)), f"(M, ceil(K/128)) = ({m}, {block_count(k)})")


def _quantize_weight(w: Tensor) -> tuple[Tensor, Tensor]:
    expect("w", w, _INPUTS, (None, None), "(N, K)")
    n, k = w.shape
    expect_depth("w", k)
    scales = w.new_empty((block_count(n), block_count(k)), dtype=torch.float32)
    return w.new_empty((n, k), dtype=FP8), scales


def _quantize_silu_mul(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    if counts is None:
        expect("x", x, _INPUTS, (None, None), "(M, 2K)")
    else:
        expect("x", x, _INPUTS, (None, None, None), "(G, max_m, 2K)")
    twice_k = x.shape[-1]
    if twice_k % 32 or twice_k < 32:
        raise InputError(f"x: expected 2K columns, K a multiple of 16 and at least 16, got {twice_k} columns")
    return _quantised(x, x.shape[0], twice_k // 2) if counts is None else _masked(x, counts, twice_k // 2)


def _quantize_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    codes, scales = _quantize_activation(x)
    k = x.shape[1]
    expect("weight", weight, _INPUTS, (k,), f"(K,) = ({k},)")
    return codes, scales


def _quantize_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    codes, scales = _quantize_rms_norm(x, weight, eps)
    expect("residual", residual, (x.dtype,), tuple(x.shape), f"{tuple(x.shape)}, that of x")
    return codes, scales, x.new_empty(x.shape)


FAKES: dict[str, Callable[..., Any]] = {
    "gemm": _gemm,
    "gemm_out": _gemm_out,
    "quantize_activation": _quantize_activation,
    "quantize_activation_out": _quantize_activation_out,
    "quantize_weight": _quantize_weight,
    "quantize_silu_mul": _quantize_silu_mul,
    "quantize_rms_norm": _quantize_rms_norm,
    "quantize_add_rms_norm": _quantize_add_rms_norm,
}
"""By the operator's name."""
