"""How far a right kernel can be off: what the tensor core drops when it adds the products of an instruction."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.scales import BLOCK
from tests.diagnosis import Inputs

_INSTRUCTION_K = 32
_FRACTION_BITS = 13


def truncation_bound(inputs: Inputs, rows: Tensor, columns: Tensor) -> Tensor:
    """The most that truncation can make of the elements at (rows, columns); (elements,) float64.

    An instruction adds 32 products to the block's sum so far. Each of these terms is cut to 13 fraction bits below the
    exponent of the largest, so each loses less than 2^-13 of that power of two.
    """
    # As bytes, because FP8 itself cannot be indexed everywhere.
    a, b = (
        codes.view(torch.uint8)[index].view(codes.dtype).to(torch.float64)
        for codes, index in ((inputs.a, rows), (inputs.b, columns))
    )
    products = pad(a * b, (0, -a.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK // _INSTRUCTION_K, _INSTRUCTION_K))
    so_far = products.sum(dim=3).cumsum(dim=2).roll(1, dims=2)
    so_far[:, :, 0] = 0.0
    terms = torch.cat([products, so_far[..., None]], dim=3)
    _, exponent = torch.frexp(terms.abs().amax(dim=3))
    unit = torch.exp2(exponent.to(torch.float64) - 1 - _FRACTION_BITS)
    lost = (unit * (terms != 0).sum(dim=3)).sum(dim=2)
    by_row = inputs.scales_b.shape[0] == inputs.b.shape[0]
    scales_b = inputs.scales_b[columns if by_row else columns // BLOCK]
    return (lost * (inputs.scales_a[rows] * scales_b).abs().to(torch.float64)).sum(dim=1)
