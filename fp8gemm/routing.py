"""Tokens to the layouts of grouped products and back: plain PyTorch, for a router's top-k experts.

`permute` sorts rows by expert, as `fp8gemm.gemm_grouped` takes them, and `permute_masked` gives each expert room for
``max_m`` rows, as `fp8gemm.gemm_masked` takes them. `unpermute` adds up what came out of either. None of them waits for
the GPU, all of them run under ``torch.compile(fullgraph=True)`` and in CUDA graphs, and equal inputs give equal bits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.checks.tensors import check_float32, check_tensor, check_whole, described, found
from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.scales import block_count, mn_major_pitch
from fp8gemm.sizes import LIMIT, check_size, holds

__all__ = ["MaskedTokens", "Permutation", "SortedTokens", "permute", "permute_masked", "unpermute"]


@dataclass(frozen=True)
class Permutation:
    """Where the rows of each token went.

    Attributes:
        rows: (T, top_k) int64, the row of a token's k-th expert among all rows of the layout; any row where not kept.
        kept: (T, top_k) bool, whether there is one: False for other ranks' experts, and for rows that were dropped.
    """

    rows: Tensor
    kept: Tensor


@dataclass(frozen=True)
class SortedTokens:
    """Tokens in the order of their experts, each as often as it has experts.

    Attributes:
        codes: (T * top_k, K) float8_e4m3fn, contiguous. Rows of no group come last.
        scales: (T * top_k, ceil(K/128)) float32, MN-major.
        offsets: (G + 1,) int32: rows ``offsets[g]`` to ``offsets[g + 1]`` are those of expert g.
        permutation: what `unpermute` needs.
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor
    permutation: Permutation


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens in room for ``max_m`` rows of each expert.

    Attributes:
        codes: (G, max_m, K) float8_e4m3fn, contiguous; rows past an expert's count hold anything.
        scales: (G, max_m, ceil(K/128)) float32, MN-major in each group; the same.
        counts: (G,) int32, rows of each expert, at most ``max_m``.
        asked: (G,) int32, rows that each expert would have if there were room for all: more than its count where rows
            were dropped.
        permutation: what `unpermute` needs.
    """

    codes: Tensor
    scales: Tensor
    counts: Tensor
    asked: Tensor
    permutation: Permutation


def permute(
    codes: Tensor, scales: Tensor, expert_ids: Tensor, num_experts: int, *, first_expert: int = 0
) -> SortedTokens:
    """Sort quantised tokens by expert; rows of one expert stay in the order of their tokens.

    Args:
        codes: (T, K) float8_e4m3fn, K contiguous. T may be 0.
        scales: (T, ceil(K/128)) float32, best MN-major.
        expert_ids: (T, top_k) int32 or int64. Ids outside ``first_expert`` to ``first_expert + num_experts - 1``, those
            of other ranks' experts or -1, belong to no group: their rows come last, from ``offsets[num_experts]`` on.
        num_experts: G, at least 1.
        first_expert: the id of group 0.

    Raises:
        InputError: a tensor is not as described.
    """
    _check_tokens(codes, scales, expert_ids, num_experts)
    order, offsets = _sort(expert_ids, num_experts, first_expert)
    token = order // expert_ids.shape[1]
    places = torch.arange(order.numel(), device=order.device)
    rows = torch.empty_like(order).scatter_(0, order, places).view(expert_ids.shape)
    # Whole columns of the result, padding too: a gather along the columns of what is MN-major gives what is MN-major.
    padded = pad(token, (0, mn_major_pitch(token.numel()) - token.numel()))
    sorted_scales = scales.T.index_select(1, padded)[:, : token.numel()].T
    permutation = Permutation(rows, rows < offsets[-1])
    return SortedTokens(_words(codes).index_select(0, token).view(codes.dtype), sorted_scales, offsets, permutation)


def permute_masked(
    codes: Tensor, scales: Tensor, expert_ids: Tensor, num_experts: int, max_m: int, *, first_expert: int = 0
) -> MaskedTokens:
    """Put quantised tokens into the masked layout, each expert's in the order of tokens.

    Rows past an expert's first ``max_m`` are dropped: they have no place in the layout, and add nothing in `unpermute`.
    `MaskedTokens.asked` tells of them. With ``max_m`` T, and no token that names an expert twice, there are none.

    Args:
        codes, scales, expert_ids, num_experts, first_expert: as in `permute`; ids of no group have no row.
        max_m: rows of each expert, at least 1.

    Raises:
        InputError: a tensor is not as described.
    """
    _check_tokens(codes, scales, expert_ids, num_experts)
    check_whole("max_m", max_m, 1)
    if holds(num_experts * max_m >= LIMIT):
        raise InputError(f"max_m: expected G * max_m < 2^31, got G = {num_experts}, max_m = {max_m}")
    order, offsets = _sort(expert_ids, num_experts, first_expert)
    places = torch.arange(order.numel(), device=order.device)
    group = torch.searchsorted(offsets, places, right=True) - 1
    place = places - offsets[group]
    kept = (group < num_experts) & (place < max_m)
    # What has no place goes to one that is cut off at the end.
    group, place = torch.where(kept, group, num_experts), torch.where(kept, place, 0)
    row = group * max_m + place
    token = order // expert_ids.shape[1]
    words = _words(codes)
    laid_out = words.new_empty(num_experts * max_m + 1, words.shape[1])
    laid_out = laid_out.index_copy_(0, row, words.index_select(0, token))[:-1].view(codes.dtype)
    blocks = scales.new_empty(num_experts + 1, scales.shape[1], mn_major_pitch(max_m)).transpose(1, 2)
    blocks[group, place] = scales[token]
    asked = offsets.diff()
    permutation = Permutation(
        torch.empty_like(order).scatter_(0, order, row.clamp(max=num_experts * max_m - 1)).view(expert_ids.shape),
        torch.empty_like(kept).scatter_(0, order, kept).view(expert_ids.shape),
    )
    return MaskedTokens(
        laid_out.view(num_experts, max_m, codes.shape[1]),
        blocks[:num_experts, :max_m],
        asked.clamp(max=max_m),
        asked,
        permutation,
    )


def unpermute(y: Tensor, permutation: Permutation, weights: Tensor) -> Tensor:
    """For each token the weighted sum over its experts: ``sum_k weights[t, k] * y[rows[t, k]]``.

    Products and sums are float32, in an order that depends on top_k alone; compiled, products may be rounded before
    they are added, or not. Rows that were not kept add nothing, whatever they and their weights hold.

    Args:
        y: (T * top_k, N) in the order of `permute`, or (G, max_m, N) in that of `permute_masked`; bfloat16, float16 or
            float32.
        permutation: what `permute` or `permute_masked` returned.
        weights: (T, top_k), of any floating dtype.

    Returns:
        (T, N) of y's dtype, contiguous.

    Raises:
        InputError: a tensor is not as described.
    """
    _check_outputs(y, permutation, weights)
    matrix = y.flatten(0, -2)
    dropped = ~permutation.kept
    factors = weights.float().masked_fill(dropped, 0.0)
    chosen = matrix.index_select(0, permutation.rows.flatten()).view(*weights.shape, y.shape[-1])
    # Not a factor of 0 alone: a row that nothing was written to may hold NaN.
    chosen = chosen.masked_fill(dropped[..., None], 0.0)
    return (chosen * factors[..., None]).sum(1).to(y.dtype)


def _sort(expert_ids: Tensor, num_experts: int, first_expert: int) -> tuple[Tensor, Tensor]:
    """(T * top_k,) int64: indices into the flat ids, by group, those of no group last; and (G + 1,) int32 offsets."""
    ids = expert_ids.flatten()
    is_here = (ids >= first_expert) & (ids < first_expert + num_experts)
    groups = torch.where(is_here, ids - first_expert, num_experts).to(torch.int32)
    found, order = torch.sort(groups, stable=True)
    limits = torch.arange(num_experts + 1, dtype=torch.int32, device=ids.device)
    return order, torch.searchsorted(found, limits, out_int32=True)


def _words(codes: Tensor) -> Tensor:
    """FP8 codes as integers, eight in one where that is possible: PyTorch's own kernels copy one element a thread."""
    if torch.compiler.is_compiling():
        return codes.view(torch.uint8)  # what is compiled vectorises by itself, and cannot ask for an offset
    wide = codes.shape[1] % 8 == 0 and codes.stride(0) % 8 == 0 and codes.storage_offset() % 8 == 0
    return codes.view(torch.int64 if wide else torch.uint8)


def _check_tokens(codes: Tensor, scales: Tensor, expert_ids: Tensor, num_experts: int) -> None:
    for name, tensor in (("codes", codes), ("expert_ids", expert_ids)):
        check_tensor(name, tensor)
    if codes.dtype != torch.float8_e4m3fn or codes.ndim != 2 or codes.stride(1) != 1:
        raise InputError(
            f"codes: expected torch.float8_e4m3fn of shape (T, K), K contiguous, got {codes.dtype} of shape "
            f"{tuple(codes.shape)}, strides {codes.stride()}"
        )
    check_float32("scales", scales, (codes.shape[0], block_count(codes.shape[1])), "(T, ceil(K/128))")
    if expert_ids.dtype not in (torch.int32, torch.int64):
        raise InputError(f"expert_ids: expected torch.int32 or torch.int64, got {expert_ids.dtype}")
    if expert_ids.ndim != 2 or expert_ids.shape[0] != codes.shape[0] or expert_ids.shape[1] == 0:
        raise InputError(
            f"expert_ids: expected shape (T, top_k) with T = {codes.shape[0]} and top_k >= 1, got "
            f"{tuple(expert_ids.shape)}"
        )
    if holds(expert_ids.shape[0] * expert_ids.shape[1] >= LIMIT):
        raise InputError(f"expert_ids: expected T * top_k < 2^31, got shape {tuple(expert_ids.shape)}")
    check_whole("num_experts", num_experts, 1)
    check_size("num_experts", "num_experts", num_experts)
    _check_device(codes.device, scales=scales, expert_ids=expert_ids)


def _check_outputs(y: Tensor, permutation: Permutation, weights: Tensor) -> None:
    check_tensor("y", y)
    check_tensor("weights", weights)
    if not isinstance(permutation, Permutation):
        raise InputError(f"permutation: expected what permute or permute_masked returned, got {described(permutation)}")
    if y.ndim not in (2, 3) or y.dtype not in INPUTS:
        raise InputError(
            f"y: expected bfloat16, float16 or float32 of shape (T * top_k, N) or (G, max_m, N), got {found(y)}"
        )
    shape = permutation.rows.shape
    if y.ndim == 2 and y.shape[0] != shape.numel():
        raise InputError(f"y: expected T * top_k = {shape.numel()} rows, got shape {tuple(y.shape)}")
    if weights.shape != shape or not weights.is_floating_point():
        raise InputError(
            f"weights: expected a floating dtype and shape {tuple(shape)} = (T, top_k), got {weights.dtype} of shape "
            f"{tuple(weights.shape)}"
        )
    _check_device(y.device, permutation=permutation.rows, weights=weights)


def _check_device(device: torch.device, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise InputError(f"{name}: expected on {device}, got {tensor.device}")
