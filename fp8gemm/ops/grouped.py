"""The operators of grouped products: schemas, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

SCHEMAS = (
    "gemm_grouped(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? indices, Tensor? offsets, "
    "ScalarType out_dtype, SymInt? expected_m, bool? batch_invariant) -> Tensor",
    "gemm_grouped_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? indices, Tensor? offsets, "
    "SymInt? expected_m, bool? batch_invariant, *, Tensor(a!) out) -> ()",
    "gemm_masked(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor counts, ScalarType out_dtype, "
    "SymInt? expected_m, bool? batch_invariant) -> Tensor",
    "gemm_masked_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor counts, SymInt? expected_m, "
    "bool? batch_invariant, *, Tensor(a!) out) -> ()",
    "gemm_k_grouped(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor offsets, Tensor? c) -> Tensor",
    "gemm_k_grouped_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor offsets, Tensor? c, *, "
    "Tensor(a!) out) -> ()",
)


@cache
def _grouped() -> Any:
    return import_module("fp8gemm.products.grouped_products")


def _gemm_grouped(*args: Any) -> Any:
    (*terms, out_dtype, expected_m, batch_invariant) = args
    return _grouped().multiply_grouped(*terms, None, out_dtype, expected_m, batch_invariant)


def _gemm_grouped_out(*args: Any, out: Tensor) -> None:
    (*terms, expected_m, batch_invariant) = args
    _grouped().multiply_grouped(*terms, out, out.dtype, expected_m, batch_invariant)


def _gemm_masked(*args: Any) -> Any:
    (*terms, out_dtype, expected_m, batch_invariant) = args
    return _grouped().multiply_masked(*terms, None, out_dtype, expected_m, batch_invariant)


def _gemm_masked_out(*args: Any, out: Tensor) -> None:
    (*terms, expected_m, batch_invariant) = args
    _grouped().multiply_masked(*terms, out, out.dtype, expected_m, batch_invariant)


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
