"""Routing in plain PyTorch, on any device: where tokens go, what lies there, and sums of what comes back."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.reference.quantize import quantize_rows
from fp8gemm.scales import empty_mn_major


def sort_ids(expert_ids: Tensor, num_experts: int, first_expert: int) -> tuple[Tensor, Tensor]:
    """(T * top_k,) int64: indices into the flat ids, by group, those of no group last; and (G + 1,) int32 offsets."""
    ids = expert_ids.flatten()
    is_here = (ids >= first_expert) & (ids < first_expert + num_experts)
    groups = torch.where(is_here, ids - first_expert, num_experts).to(torch.int32)
    found, order = torch.sort(groups, stable=True)
    limits = torch.arange(num_experts + 1, dtype=torch.int32, device=ids.device)
    return order, torch.searchsorted(found, limits, out_int32=True)


def route(expert_ids: Tensor, num_experts: int, first_expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where the rows of each token go, sorted by expert, those of one expert in the order of tokens.

    Args:
        expert_ids: (T, top_k) int32 or int64; ids of no group come last.
        num_experts: G.
        first_expert: the id of group 0.

    Returns:
        offsets (G + 1,) int32, the first row of each group and of those of none; rows (T, top_k) int64; and kept
        (T, top_k) bool, whether a row is of some group.
    """
    order, offsets = sort_ids(expert_ids, num_experts, first_expert)
    places = torch.arange(order.numel(), device=order.device)
    rows = torch.empty_like(order).scatter_(0, order, places).view(expert_ids.shape)
    return offsets, rows, rows < offsets[-1]


@torch.no_grad()
def quantize_to_rows(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """`copy_to_rows` of the codes and scales of ``x`` (T, K)."""
    return copy_to_rows(*quantize_rows(x), rows)


def copy_to_rows(codes: Tensor, scales: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (T * top_k, K), contiguous, and MN-major scales: those of each token in its ``rows`` (T, top_k)."""
    count = rows.numel()
    out = codes.new_empty((count, codes.shape[1])), empty_mn_major(count, scales.shape[1], device=scales.device)
    copy_to_rows_into(codes, scales, rows, out)
    return out


def copy_to_rows_into(codes: Tensor, scales: Tensor, rows: Tensor, out: tuple[Tensor, Tensor]) -> None:
    """The same into codes and scales of more rows than these tokens have; the others are left as they are."""
    of_rows, their_scales = out
    places, values = words(of_rows), words(codes)
    if places.dtype != values.dtype:
        places, values = of_rows.view(torch.uint8), codes.view(torch.uint8)
    places[rows], their_scales[rows] = values[:, None], scales[:, None]


def unpermute(y: Tensor, rows: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """For each token the float32 sum of ``weights[t, k] * y[rows[t, k]]`` over the k that were kept, ascending.

    Args:
        y: (rows, N), of any floating dtype.
        rows, kept, weights: (T, top_k) int64, bool, and of any floating dtype.

    Returns:
        (T, N) of y's dtype.
    """
    factors = weights.float().masked_fill(~kept, 0.0)
    sums = torch.zeros((rows.shape[0], y.shape[1]), dtype=torch.float32, device=y.device)
    for k in range(rows.shape[1]):
        chosen = y.index_select(0, rows[:, k])
        # Not a factor of 0 alone: a row that nothing was written to may hold NaN.
        sums = sums + chosen.masked_fill(~kept[:, k, None], 0.0) * factors[:, k, None]
    return sums.to(y.dtype)


def words(codes: Tensor) -> Tensor:
    """FP8 codes as integers, eight in one where that is possible: PyTorch's own kernels copy one element a thread."""
    if torch.compiler.is_compiling():
        return codes.view(torch.uint8)  # what is compiled vectorises by itself, and cannot ask for an offset
    wide = codes.shape[1] % 8 == 0 and codes.stride(0) % 8 == 0 and codes.storage_offset() % 8 == 0
    return codes.view(torch.int64 if wide else torch.uint8)
