"""The operators of grouped products: schemas, what they compute, and their fake kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.ops.fake import FP8, INTEGERS, OUTPUTS, expect, expect_depth, expect_output
from fp8gemm.scales import block_count

SCHEMAS = (
    "gemm_grouped(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? indices, Tensor? offsets, "
    "ScalarType out_dtype, SymInt? expected_m, bool? batch_invariant, bool static_weights) -> Tensor",
    "gemm_grouped_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? indices, Tensor? offsets, "
    "SymInt? expected_m, bool? batch_invariant, bool static_weights, *, Tensor(a!) out) -> ()",
    "gemm_masked(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor counts, ScalarType out_dtype, "
    "SymInt? expected_m, bool? batch_invariant, bool static_weights) -> Tensor",
    "gemm_masked_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor counts, SymInt? expected_m, "
    "bool? batch_invariant, bool static_weights, *, Tensor(a!) out) -> ()",
    "gemm_k_grouped(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor offsets, Tensor? c) -> Tensor",
    "gemm_k_grouped_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor offsets, Tensor? c, *, "
    "Tensor(a!) out) -> ()",
)


@cache
def _grouped() -> Any:
    return import_module("fp8gemm.grouped_products")


def _gemm_grouped(*args: Any) -> Any:
    (*terms, out_dtype, expected_m, batch_invariant, static_weights) = args
    return _grouped().multiply_grouped(*terms, None, out_dtype, expected_m, batch_invariant, static_weights)


def _gemm_grouped_out(*args: Any, out: Tensor) -> None:
    (*terms, expected_m, batch_invariant, static_weights) = args
    _grouped().multiply_grouped(*terms, out, out.dtype, expected_m, batch_invariant, static_weights)


def _gemm_masked(*args: Any) -> Any:
    (*terms, out_dtype, expected_m, batch_invariant, static_weights) = args
    return _grouped().multiply_masked(*terms, None, out_dtype, expected_m, batch_invariant, static_weights)


def _gemm_masked_out(*args: Any, out: Tensor) -> None:
    (*terms, expected_m, batch_invariant, static_weights) = args
    _grouped().multiply_masked(*terms, out, out.dtype, expected_m, batch_invariant, static_weights)


def _gemm_k_grouped(*args: Any) -> Any:
    return _grouped().multiply_k_grouped(*args, None)


def _gemm_k_grouped_out(*args: Any, out: Tensor) -> None:
    _grouped().multiply_k_grouped(*args, out)


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "gemm_grouped": _gemm_grouped,
    "gemm_grouped_out": _gemm_grouped_out,
    "gemm_masked": _gemm_masked,
    "gemm_masked_out": _gemm_masked_out,
    "gemm_k_grouped": _gemm_k_grouped,
    "gemm_k_grouped_out": _gemm_k_grouped_out,
}


def _weights(b: Tensor, scales_b: Tensor) -> tuple[int, int, int]:
    expect("b", b, (FP8,), (None, None, None), "(G, N, K)")
    groups, n, k = b.shape
    expect_depth("b", k)
    shape = groups, block_count(n), block_count(k)
    expect("scales_b", scales_b, (torch.float32,), shape, f"(G, ceil(N/128), ceil(K/128)) = {shape}")
    return groups, n, k


def _grouped_shape(
    a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, indices: Tensor | None, offsets: Tensor | None
) -> tuple[int, int]:
    groups, n, k = _weights(b, scales_b)
    expect("a", a, (FP8,), (None, k), f"(M, K) with K = {k} as in b")
    m = a.shape[0]
    expect("scales_a", scales_a, (torch.float32,), (m, block_count(k)), f"(M, ceil(K/128)) = ({m}, {block_count(k)})")
    if (indices is None) == (offsets is None):
        raise InputError(f"expected either indices or offsets, got {'neither' if indices is None else 'both'}")
    if indices is not None:
        expect("indices", indices, INTEGERS, (m,), f"(M,) = ({m},)")
    elif offsets is not None and (
        offsets.dtype not in INTEGERS or tuple(offsets.shape) not in ((groups + 1,), (groups,), (2, groups))
    ):
        raise InputError(
            f"offsets: expected torch.int32 or torch.int64 of shape (G + 1,), (G,) or (2, G), G = {groups}, got "
            f"{offsets.dtype} of shape {tuple(offsets.shape)}"
        )
    return m, n


def _masked_shape(a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, counts: Tensor) -> tuple[int, int, int]:
    groups, n, k = _weights(b, scales_b)
    expect("a", a, (FP8,), (groups, None, k), f"(G, max_m, K) with G = {groups}, K = {k} as in b")
    max_m = a.shape[1]
    shape = groups, max_m, block_count(k)
    expect("scales_a", scales_a, (torch.float32,), shape, f"(G, max_m, ceil(K/128)) = {shape}")
    expect("counts", counts, INTEGERS, (groups,), f"(G,) = ({groups},)")
    return groups, max_m, n


def _k_grouped_shape(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    offsets: Tensor,
    c: Tensor | None,
    *,
    out: Tensor | None = None,
) -> tuple[int, int, int]:
    for name, codes, scales in (("a", a, scales_a), ("b", b, scales_b)):
        expect(name, codes, (FP8,), (None, b.shape[-1]), f"(rows, K) with K = {b.shape[-1]} as in b")
        shape = codes.shape[0], block_count(codes.shape[1])
        expect(f"scales_{name}", scales, (torch.float32,), shape, f"(rows, K/128) = {shape}")
    known = next((tensor.shape[0] for tensor in (c, out) if tensor is not None), None)
    groups = known or (offsets.shape[1] if offsets.dim() == 2 else offsets.shape[0] - 1)
    shape_d = groups, a.shape[0], b.shape[0]
    for name, tensor in (("c", c), ("out", out)):
        if tensor is not None:
            expect(name, tensor, (torch.float32,), shape_d, f"(G, M, N) = {shape_d}")
    return shape_d


def _fake_grouped(*args: Any) -> Tensor:
    (*terms, out_dtype, _, _, _) = args
    shape, a = _grouped_shape(*terms), args[0]
    return a.new_empty(shape, dtype=expect_output(out_dtype))  # type: ignore[no-any-return]


def _fake_grouped_out(*args: Any, out: Tensor) -> None:
    (*terms, _, _, _) = args
    shape = _grouped_shape(*terms)
    expect("out", out, OUTPUTS, shape, f"(M, N) = {shape}")


def _fake_masked(*args: Any) -> Tensor:
    (*terms, out_dtype, _, _, _) = args
    shape, a = _masked_shape(*terms), args[0]
    return a.new_empty(shape, dtype=expect_output(out_dtype))  # type: ignore[no-any-return]


def _fake_masked_out(*args: Any, out: Tensor) -> None:
    (*terms, _, _, _) = args
    shape = _masked_shape(*terms)
    expect("out", out, OUTPUTS, shape, f"(G, max_m, N) = {shape}")


def _fake_k_grouped(*args: Any) -> Tensor:
    return args[0].new_empty(_k_grouped_shape(*args), dtype=torch.float32)  # type: ignore[no-any-return]


def _fake_k_grouped_out(*args: Any, out: Tensor) -> None:
    _k_grouped_shape(*args, out=out)


FAKES: dict[str, Callable[..., Any]] = {
    "gemm_grouped": _fake_grouped,
    "gemm_grouped_out": _fake_grouped_out,
    "gemm_masked": _fake_masked,
    "gemm_masked_out": _fake_masked_out,
    "gemm_k_grouped": _fake_k_grouped,
    "gemm_k_grouped_out": _fake_k_grouped_out,
}
"""By the operator's name."""
