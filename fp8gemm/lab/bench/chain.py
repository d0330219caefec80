"""Two products in a row, as a feed-forward layer has them: each activation quantised, then multiplied.

x (M, K) -> quantise -> y (M, N) = x w^T -> quantise -> (M, K) = y w. Without an activation function between, and with
the transpose of the first weight as the second.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fp8gemm import Plan
from fp8gemm.lab.bench.operands import Call, Operands
from fp8gemm.lab.bench.peers import Peer, make_plan
from fp8gemm.products.quantize import quantize_activation

CHAIN, CHAIN_PDL = "chain", "chain_pdl"
PRODUCTS, PRODUCTS_PDL = "products", "products_pdl"


def _expected(operands: Operands) -> Tensor:
    return torch.mm(operands.product(), operands.w)


def _plans(operands: Operands, *, pdl: bool) -> tuple[Plan, Plan]:
    """There, and back."""
    there, back = operands.blocks[2:], operands.weight_back
    m = operands.x.shape[0]
    return make_plan(*there, max_m=m, pdl=pdl), make_plan(*back, max_m=m, pdl=pdl)


def _chain(operands: Operands, *, pdl: bool) -> Call:
    there, back = _plans(operands, pdl=pdl)
    x = operands.x
    return lambda: back(*quantize_activation(there(*quantize_activation(x))))


def _products(operands: Operands, *, pdl: bool) -> Call:
    there, back = _plans(operands, pdl=pdl)
    a, scales_a = operands.blocks[:2]
    between = quantize_activation(there(a, scales_a))

    def call() -> Tensor:
        there(a, scales_a)
        return back(*between)

    return call


_WITH_PDL = "the same with static_weights=True and programmatic dependent launch"

PEERS = (
    Peer(CHAIN, "quantize_activation, plan, quantize_activation, plan", partial(_chain, pdl=False), expected=_expected),
    Peer(CHAIN_PDL, _WITH_PDL, partial(_chain, pdl=True), expected=_expected),
    Peer(
        PRODUCTS,
        "the two plans back to back, their activations quantised beforehand",
        partial(_products, pdl=False),
        expected=_expected,
    ),
    Peer(PRODUCTS_PDL, _WITH_PDL, partial(_products, pdl=True), expected=_expected),
)
