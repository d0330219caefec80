"""Two products in a row, as a feed-forward layer has them: each activation quantised, then multiplied.

x (M, K) -> quantise -> y (M, N) = x w^T -> quantise -> (M, K) = y w. Without an activation function between, and with
the transpose of the first weight as the second.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.benchmark.peers import Call, Operands, Peer, make_plan
from fp8gemm.quantize import quantize_activation

CHAIN, CHAIN_PDL = "chain", "chain_pdl"
PRODUCTS, PRODUCTS_PDL = "products", "products_pdl"


def _expected(operands: Operands) -> Tensor:
    return torch.mm(operands.product(), operands.w)


def _chain(operands: Operands, *, pdl: bool) -> Call:
    m, x = operands.x.shape[0], operands.x
    there, back = (make_plan(*weight, max_m=m, pdl=pdl) for weight in (operands.blocks[2:], operands.weight_back))

    def call() -> Tensor:
        with settings.scope(pdl=pdl):
            return back(*quantize_activation(there(*quantize_activation(x))))

    return call


def _products(operands: Operands, *, pdl: bool) -> Call:
    a, scales_a, *weight = operands.blocks
    there, back = (make_plan(*each, max_m=a.shape[0], pdl=pdl) for each in (weight, operands.weight_back))
    between = quantize_activation(there(a, scales_a))

    def call() -> Tensor:
        with settings.scope(pdl=pdl):
            there(a, scales_a)
            return back(*between)

    return call


PEERS = (
    Peer(
        CHAIN,
        "quantize_activation, plan, quantize_activation, plan",
        lambda operands: _chain(operands, pdl=False),
        expected=_expected,
    ),
    Peer(
        CHAIN_PDL,
        "the same with static_weights=True and programmatic dependent launch",
        lambda operands: _chain(operands, pdl=True),
        expected=_expected,
    ),
    Peer(
        PRODUCTS,
        "the two plans back to back, their activations quantised beforehand",
        lambda operands: _products(operands, pdl=False),
        expected=_expected,
    ),
    Peer(
        PRODUCTS_PDL,
        "the same with static_weights=True and programmatic dependent launch",
        lambda operands: _products(operands, pdl=True),
        expected=_expected,
    ),
)
