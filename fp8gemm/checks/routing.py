"""Checks of what tokens are routed by: experts' ids, rows, what was kept, and weights."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import CODES, INPUTS, INTEGERS, listed
from fp8gemm.checks.tensors import check_float32, check_no_gradient, check_tensor, check_whole, found
from fp8gemm.errors import InputError
from fp8gemm.scales import block_count
from fp8gemm.sizes import LIMIT, check_size, holds


def check_ids(expert_ids: Tensor, num_experts: int, first_expert: int, tokens: int | None = None) -> None:
    """``expert_ids`` (T, top_k) can be sorted by the experts from ``first_expert`` on."""
    check_tensor("expert_ids", expert_ids)
    if expert_ids.dtype not in INTEGERS:
        raise InputError(f"expert_ids: expected {listed(INTEGERS)}, got {expert_ids.dtype}")
    _check_of_tokens("expert_ids", expert_ids, tokens)
    check_whole("num_experts", num_experts, 1)
    check_size("num_experts", "num_experts", num_experts)
    check_whole("first_expert", first_expert, 0, LIMIT - 1)


def check_tokens(codes: Tensor, scales: Tensor) -> None:
    """``codes`` (T, K) and ``scales`` are those of quantised tokens."""
    check_tensor("codes", codes)
    if codes.dtype != CODES or codes.ndim != 2 or codes.stride(1) != 1:
        raise InputError(
            f"codes: expected {CODES} of shape (T, K), K contiguous, got {codes.dtype} of shape "
            f"{tuple(codes.shape)}, strides {codes.stride()}"
        )
    check_no_gradient("codes", codes)
    check_float32("scales", scales, (codes.shape[0], block_count(codes.shape[1])), "(T, ceil(K/128))")


def check_routes(rows: Tensor, tokens: int | None = None) -> None:
    """``rows`` (T, top_k) say where tokens go."""
    check_tensor("rows", rows)
    if rows.dtype != torch.int64:
        raise InputError(f"rows: expected torch.int64, got {rows.dtype}")
    _check_of_tokens("rows", rows, tokens)


def check_offsets_of_routes(offsets: Tensor) -> None:
    """``offsets`` (G + 1,) end with how many rows are kept."""
    check_tensor("offsets", offsets)
    if offsets.dtype != torch.int32 or offsets.ndim != 1 or offsets.shape[0] < 2 or not offsets.is_contiguous():
        raise InputError(
            f"offsets: expected contiguous torch.int32 of shape (G + 1,), G >= 1, got {found(offsets)}, strides "
            f"{offsets.stride()}"
        )


def check_sums(y: Tensor, rows: Tensor, kept: Tensor, weights: Tensor) -> None:
    """``y`` (rows, N) can be summed for each token."""
    check_tensor("y", y)
    if y.ndim != 2 or y.dtype not in INPUTS:
        raise InputError(f"y: expected one of {listed(INPUTS, ', ')} of shape (rows, N), got {found(y)}")
    check_size("y", "rows", y.shape[0])
    check_size("y", "N", y.shape[1])
    check_routes(rows)
    check_tensor("kept", kept)
    if kept.dtype != torch.bool or kept.shape != rows.shape:
        raise InputError(f"kept: expected torch.bool of shape {tuple(rows.shape)} = (T, top_k), got {found(kept)}")
    check_tensor("weights", weights)
    if weights.shape != rows.shape or weights.dtype not in (*INPUTS, torch.float64):
        raise InputError(
            f"weights: expected a floating dtype and shape {tuple(rows.shape)} = (T, top_k), got {weights.dtype} of "
            f"shape {tuple(weights.shape)}"
        )
    check_devices(y.device, rows=rows, kept=kept, weights=weights)
    if holds(y.shape[0] == 0) and holds(rows.shape[0] > 0):
        raise InputError(f"y: expected rows for T = {rows.shape[0]} tokens, got shape {tuple(y.shape)}")


def check_devices(device: torch.device, **tensors: Tensor) -> None:
    """Tensors are where the first operand is."""
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise InputError(f"{name}: expected on {device}, got {tensor.device}")


def _check_of_tokens(name: str, tensor: Tensor, tokens: int | None) -> None:
    """A tensor is (T, top_k), of as many tokens as there are."""
    if tensor.ndim != 2 or tensor.shape[1] == 0 or (tokens is not None and tensor.shape[0] != tokens):
        of_tokens = "" if tokens is None else f"T = {tokens} and "
        raise InputError(f"{name}: expected shape (T, top_k) with {of_tokens}top_k >= 1, got {tuple(tensor.shape)}")
    if holds(tensor.shape[0] * tensor.shape[1] >= LIMIT):
        raise InputError(f"{name}: expected T * top_k < 2^31, got shape {tuple(tensor.shape)}")
