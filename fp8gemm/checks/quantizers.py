"""Checks of what a user passes to a quantiser."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import CODES, INPUTS, INTEGERS, check_dtype, listed
from fp8gemm.checks.tensors import check_elements, check_tensor, found
from fp8gemm.errors import InputError
from fp8gemm.scales import block_count
from fp8gemm.sizes import check_norm_depth, check_size


def check_rows(x: Tensor, counts: Tensor | None, parts: int = 1) -> None:
    """``x`` is a matrix of ``parts`` times K columns, or with ``counts`` a stack of them that has a count for each."""
    columns = "K" if parts == 1 else f"{parts}K"
    if counts is None:
        check_matrix("x", x, shape=f"(M, {columns})", parts=parts)
        return
    check_matrix("x", x, shape=f"(G, max_m, {columns})", parts=parts, dimensions=3)
    check_tensor("counts", counts)
    if counts.dtype not in INTEGERS or counts.shape != x.shape[:1] or counts.device != x.device:
        raise InputError(
            f"counts: expected {listed(INTEGERS)} of shape ({x.shape[0]},) = (G,) on {x.device}, got {found(counts)} "
            f"on {counts.device}"
        )


def check_matrix(name: str, x: Tensor, *, shape: str, parts: int = 1, dimensions: int = 2) -> None:
    """``x`` is a matrix of ``parts`` times K columns, or a stack of them."""
    check_tensor(name, x)
    check_dtype(name, x.dtype, INPUTS)
    sizes = x.shape
    if len(sizes) != dimensions:
        raise InputError(f"{name}: expected {dimensions} dimensions, {shape}, got shape {tuple(sizes)}")
    columns = sizes[-1]
    if columns < 16 * parts or columns % (16 * parts):
        raise InputError(
            f"{name}: expected {shape} with K a positive multiple of 16, got K = {int(columns) / parts:g}, shape "
            f"{tuple(sizes)}"
        )
    if x.stride(-1) != 1:
        raise InputError(f"{name}: expected {shape} with K contiguous (stride 1), got strides {x.stride()}")
    check_size(name, "K", columns // parts)
    if dimensions == 2:
        check_size(name, shape[1], sizes[0])  # "M" of "(M, K)"
    else:
        check_size(name, "G * max_m", sizes[0] * sizes[1])


def check_norm(x: Tensor, weight: Tensor, eps: float) -> None:
    """``weight`` (K,) and ``eps`` are of a norm of the rows of ``x`` (M, K)."""
    check_matrix("x", x, shape="(M, K)")
    check_norm_depth("x", x.shape[1])
    check_tensor("weight", weight)
    if weight.dtype not in INPUTS or weight.shape != x.shape[1:] or weight.device != x.device:
        raise InputError(
            f"weight: expected one of {listed(INPUTS, ', ')} of shape {tuple(x.shape[1:])} = (K,) on {x.device}, got "
            f"{found(weight)} on {weight.device}"
        )
    if not weight.is_contiguous():
        raise InputError(f"weight: expected stride 1, got stride {weight.stride(0)}; pass .contiguous()")
    if not isinstance(eps, (int, float, torch.SymFloat)) or not eps >= 0:
        raise InputError(f"eps: expected a number of at least 0, got {eps!r}")


def check_residual(residual: Tensor, x: Tensor) -> None:
    """``residual`` can be added to ``x`` (M, K), which is checked."""
    check_matrix("residual", residual, shape="(M, K)")
    if residual.shape != x.shape or residual.dtype != x.dtype or residual.device != x.device:
        raise InputError(
            f"residual: expected {x.dtype} of shape {tuple(x.shape)} on {x.device} as x, got {found(residual)} on "
            f"{residual.device}"
        )


def check_quantized(x: Tensor, codes: Tensor, scales: Tensor) -> None:
    """``codes`` and ``scales`` have room for those of ``x`` (M, K), which is checked."""
    m, k = x.shape
    for name, tensor, dtype, shape, meaning in (
        ("codes", codes, CODES, (m, k), "(M, K)"),
        ("scales", scales, torch.float32, (m, block_count(k)), "(M, ceil(K/128))"),
    ):
        if tensor.dtype != dtype or tensor.shape != shape or tensor.device != x.device:
            raise InputError(
                f"{name}: expected {dtype} of shape {shape} = {meaning} on {x.device}, got {found(tensor)} on "
                f"{tensor.device}"
            )
        check_elements(name, tensor)
