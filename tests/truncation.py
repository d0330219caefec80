"""How far a right kernel is off, and can be: what the tensor core drops when it adds the products of an instruction."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.sizes import SCALE_BLOCK
from tests.diagnosis import Inputs

_INSTRUCTION_K = 32
_FRACTION_BITS = 13
_AT_ONCE = 1 << 24
"""Products of `truncation_error` that are worked on at once, 128 MB of them."""


def add_like_a_tensor_core(total: Tensor, products: Tensor) -> Tensor:
    """`total + sum of products` with every term cut to 13 fraction bits below the largest one's exponent."""
    terms = torch.cat([total[..., None], products], dim=-1)
    _, exponent = torch.frexp(terms.abs().amax(dim=-1, keepdim=True))
    unit = torch.exp2(exponent.to(torch.float64) - 1 - _FRACTION_BITS)
    return ((terms / unit).trunc() * unit).sum(dim=-1)


def truncation_error(inputs: Inputs, rows: Tensor, columns: Tensor) -> Tensor:
    """What truncation makes of the elements at (rows, columns), by this model; (elements,) float64."""
    some = max(1, _AT_ONCE // (SCALE_BLOCK * inputs.scales_a.shape[1]))
    parts = zip(rows.split(some), columns.split(some), strict=True)
    return torch.cat([_truncation_error(inputs, *part) for part in parts])


def _truncation_error(inputs: Inputs, rows: Tensor, columns: Tensor) -> Tensor:
    products = inputs.products_of(rows, columns)
    total = torch.zeros_like(products[..., 0])
    for instruction in products.split(_INSTRUCTION_K, dim=2):
        total = add_like_a_tensor_core(total, instruction)
    scales_b = inputs.scales_b[inputs.scale_rows_of(columns)]
    return ((total - products.sum(dim=2)) * (inputs.scales_a[rows] * scales_b).to(torch.float64)).sum(dim=1)


def truncation_bound(inputs: Inputs, rows: Tensor, columns: Tensor) -> Tensor:
    """The most that truncation can make of the elements at (rows, columns); (elements,) float64.

    An instruction adds 32 products to the block's sum so far. Each of these terms is cut to 13 fraction bits below the
    exponent of the largest, so each loses less than 2^-13 of that power of two.
    """
    products = inputs.products_of(rows, columns).unflatten(2, (-1, _INSTRUCTION_K))
    so_far = products.sum(dim=3).cumsum(dim=2).roll(1, dims=2)
    so_far[:, :, 0] = 0.0
    terms = torch.cat([products, so_far[..., None]], dim=3)
    _, exponent = torch.frexp(terms.abs().amax(dim=3))
    unit = torch.exp2(exponent.to(torch.float64) - 1 - _FRACTION_BITS)
    lost = (unit * (terms != 0).sum(dim=3)).sum(dim=2)
    scales_b = inputs.scales_b[inputs.scale_rows_of(columns)]
    return (lost * (inputs.scales_a[rows] * scales_b).abs().to(torch.float64)).sum(dim=1)
