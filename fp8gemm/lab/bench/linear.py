"""A linear layer as a model calls it: bfloat16 in and out, quantising the activations included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch.nn import functional

from fp8gemm.lab.bench import engine_mix
from fp8gemm.lab.bench.gates import Gate, Gates
from fp8gemm.lab.bench.operands import Call, Operands
from fp8gemm.lab.bench.peers import Peer
from fp8gemm.lab.bench.report import Row
from fp8gemm.nn import Fp8Linear

OURS, BF16 = engine_mix.OURS, "bf16_linear"
MANY, FEW = 512, 64
"""At this M and above a layer counts as one over many rows, at this one and below as one over few."""


def fp8_layer(operands: Operands) -> Fp8Linear:
    """Ours with the operands' weight."""
    return Fp8Linear.from_quantized(*operands.blocks[2:])


def fp8_linear(operands: Operands) -> Call:
    """A call of ours as a module."""
    return partial(fp8_layer(operands), operands.x)


def bf16_linear(operands: Operands) -> Call:
    """The same in bfloat16, without a layer around it."""
    return partial(functional.linear, operands.x, operands.w)


PEERS = (
    Peer(OURS, "fp8gemm.nn.Fp8Linear, bfloat16 to bfloat16, quantising included", fp8_linear),
    Peer(BF16, "torch.nn.functional.linear, bfloat16", bf16_linear),
)


def _speeds(rows: Sequence[Row], least: int, most: float) -> Mapping[str, float | None]:
    return {row.at(row.shape): row.time_ratio(BF16, OURS) for row in rows if least <= row.shape.m <= most}


GATES: Gates[Row] = Gates(
    (
        Gate(f"speed at M >= {MANY}", 1.5, lambda rows: _speeds(rows, MANY, float("inf")), mean=True),
        Gate(f"speed at M <= {FEW}", 1.3, lambda rows: _speeds(rows, 1, FEW), mean=True),
    )
)
"""Of `Fp8Linear` relative to bfloat16."""
