"""The products of experts whose weights are given, for blocks that hold them and for those of other libraries."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fp8gemm.nn.experts_shape import WithScales
from fp8gemm.products.grouped import gemm_grouped, gemm_grouped_again, gemm_masked, gemm_masked_again
from fp8gemm.products.operands import contiguous_rows
from fp8gemm.products.quantize import quantize_silu_mul
from fp8gemm.routing import Permutation, permute, quantize_permuted, unpermute

Weights = tuple[WithScales, WithScales]
"""Gate and up of all experts here, then down."""


def of_hidden(
    hidden: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    of: Weights,
    *,
    first_expert: int = 0,
    some: bool = False,
    options: dict[str, Any],
) -> Tensor:
    """`of_tokens` of ``hidden`` (T, H) of any strides, quantised on its way to the experts' rows."""
    return unpermute(*outputs_of(hidden, expert_ids, of, first_expert, some, options), weights)


def outputs_of(
    hidden: Tensor, expert_ids: Tensor, of: Weights, first_expert: int, some: bool, options: dict[str, Any]
) -> tuple[Tensor, Permutation]:
    """The experts' outputs of which `of_hidden` is the weighted sums, and where each token's are."""
    tokens = quantize_permuted(contiguous_rows(hidden), expert_ids, of[0][0].shape[0], first_expert=first_expert)
    return of_sorted(tokens.codes, tokens.scales, tokens.offsets, of, options, some=some), tokens.permutation


def of_tokens(
    codes: Tensor,
    scales: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    of: Weights,
    *,
    first_expert: int = 0,
    some: bool = False,
    options: dict[str, Any],
) -> Tensor:
    """What these experts add to the weighted sums of tokens that are quantised.

    Args:
        codes, scales: (T, H) and (T, ceil(H/128)), as `fp8gemm.quantize_activation` makes them.
        expert_ids, weights: (T, top_k). Numbers that are none of the experts' here add nothing.
        of: the experts here, of which ``first_expert`` is the first one's number.
        some: whether they are only some of a layer's, so that many rows may be of no group.
        options: of `fp8gemm.gemm_grouped`.

    Returns:
        (T, H) of the ``out_dtype`` in ``options``.
    """
    tokens = permute(codes, scales, expert_ids, of[0][0].shape[0], first_expert=first_expert)
    y = of_sorted(tokens.codes, tokens.scales, tokens.offsets, of, options, some=some)
    return unpermute(y, tokens.permutation, weights)


def of_sorted(
    codes: Tensor, scales: Tensor, offsets: Tensor, of: Weights, options: dict[str, Any], *, some: bool = False
) -> Tensor:
    """Each expert's output for its rows, which are behind each other. With ``some``, as in `of_tokens`, rows behind the
    last expert's are not quantised between the products, where one row of offsets says which these are."""
    gate_up, down = of
    between = gemm_grouped(codes, scales, *gate_up, offsets=offsets, **options)
    if some and offsets.dim() == 1:
        codes, scales = (each[0] for each in quantize_silu_mul(between[None], counts=offsets[-1:]))
    else:
        codes, scales = quantize_silu_mul(between)
    return gemm_grouped_again(codes, scales, *down, offsets=offsets, **options)


def of_masked(codes: Tensor, scales: Tensor, counts: Tensor, of: Weights, options: dict[str, Any]) -> Tensor:
    """The same for the rows that each expert has room for, of which it has so many."""
    gate_up, down = of
    between = gemm_masked(codes, scales, *gate_up, counts, **options)
    return gemm_masked_again(*quantize_silu_mul(between, counts=counts), *down, counts, **options)
