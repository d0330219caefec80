"""Tokens to the layouts of grouped products and back, for a router's top-k experts.

`permute` sorts rows by expert, as `fp8gemm.gemm_grouped` takes them, `quantize_permuted` quantises them on the way, and
`permute_masked` gives each expert room for ``max_m`` rows, as `fp8gemm.gemm_masked` takes them, by PyTorch's own
operations. `unpermute` adds up what came out of any. None of them waits for the GPU, all of them run under
``torch.compile(fullgraph=True)`` and in CUDA graphs, and equal inputs give equal bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.checks.routing import check_devices, check_ids, check_tokens
from fp8gemm.checks.tensors import check_tensor, check_whole, described, found
from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.products import routing as products
from fp8gemm.reference.routing import sort_ids, words
from fp8gemm.scales import mn_major_pitch
from fp8gemm.sizes import LIMIT, holds

__all__ = ["MaskedTokens", "Permutation", "SortedTokens", "permute", "permute_masked", "quantize_permuted", "unpermute"]


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
        codes: (T * top_k, K) float8_e4m3fn, contiguous. Rows of no group come last, and hold anything.
        scales: (T * top_k, ceil(K/128)) float32, MN-major; the same.
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
            of other ranks' experts or -1, belong to no group: their rows come last, from ``offsets[num_experts]`` on,
            and hold anything.
        num_experts: G, at least 1.
        first_expert: the id of group 0.

    Raises:
        InputError: a tensor is not as described.
    """
    _check_tokens(codes, scales, expert_ids, num_experts, first_expert)
    offsets, rows, kept = products.route(expert_ids, num_experts, first_expert)
    copies = products.copy_to_rows(codes, scales, rows, offsets)
    return SortedTokens(*copies, offsets, Permutation(rows, kept))


def quantize_permuted(x: Tensor, expert_ids: Tensor, num_experts: int, *, first_expert: int = 0) -> SortedTokens:
    """`permute` of ``fp8gemm.quantize_activation(x)``: each token is read and quantised once, and written to its rows.

    Args:
        x: (T, K) bfloat16, float16 or float32, as in `fp8gemm.quantize_activation`.
        expert_ids, num_experts, first_expert: as in `permute`.

    Raises:
        InputError: a tensor is not as described.
    """
    codes, scales, offsets, rows, kept = products.quantize_permuted(x, expert_ids, num_experts, first_expert)
    return SortedTokens(codes, scales, offsets, Permutation(rows, kept))


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
    _check_tokens(codes, scales, expert_ids, num_experts, first_expert)
    check_whole("max_m", max_m, 1)
    if holds(num_experts * max_m >= LIMIT):
        raise InputError(f"max_m: expected G * max_m < 2^31, got G = {num_experts}, max_m = {max_m}")
    order, offsets = sort_ids(expert_ids, num_experts, first_expert)
    places = torch.arange(order.numel(), device=order.device)
    group = torch.searchsorted(offsets, places, right=True) - 1
    place = places - offsets[group]
    kept = (group < num_experts) & (place < max_m)
    # What has no place goes to one that is cut off at the end.
    group, place = torch.where(kept, group, num_experts), torch.where(kept, place, 0)
    row = group * max_m + place
    token = order // expert_ids.shape[1]
    values = words(codes)
    laid_out = values.new_empty(num_experts * max_m + 1, values.shape[1])
    laid_out = laid_out.index_copy_(0, row, values.index_select(0, token))[:-1].view(codes.dtype)
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

    Products and sums are float32, each rounded, and added up in ascending k; compiled, with gradients, products may be
    added without being rounded. Rows that were not kept add nothing, whatever they and their weights hold.

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
    return products.unpermute(y.flatten(0, -2), permutation.rows, permutation.kept, weights)


def _check_tokens(codes: Tensor, scales: Tensor, expert_ids: Tensor, num_experts: int, first_expert: int) -> None:
    check_tensor("codes", codes)
    check_tensor("expert_ids", expert_ids)
    check_tokens(codes, scales)
    check_ids(expert_ids, num_experts, first_expert, codes.shape[0])
    check_devices(codes.device, scales=scales, expert_ids=expert_ids)


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
    check_devices(y.device, permutation=permutation.rows, weights=weights)
