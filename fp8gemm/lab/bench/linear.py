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
from fp8gemm.products.quantize import quantize_weight

OURS, BF16 = engine_mix.OURS, "bf16_linear"
SMALL_BLOCKS = f"{OURS}_32x32"
MANY, FEW = 512, 64
"""At this M and above a layer counts as one over many rows, at this one and below as one over few."""


def fp8_layer(operands: Operands) -> Fp8Linear:
    """Ours with the operands' weight."""
    return Fp8Linear.from_quantized(*operands.blocks[2:])


def fp8_linear(operands: Operands) -> Call:
    """A call of ours as a module."""
    return partial(fp8_layer(operands), operands.x)


def small_blocks_linear(operands: Operands) -> Call:
    """A call of ours of the same weight in blocks of 32x32, which are folded when the layer is made."""
    block = (32, 32)
    layer = Fp8Linear.from_quantized(*quantize_weight(operands.w, block_size=block), block_size=block)
    return partial(layer, operands.x)


def bf16_linear(operands: Operands) -> Call:
    """The same in bfloat16, without a layer around it."""
    return partial(functional.linear, operands.x, operands.w)


PEERS = (
    Peer(OURS, "fp8gemm.nn.Fp8Linear, bfloat16 to bfloat16, quantising included", fp8_linear),
    Peer(BF16, "torch.nn.functional.linear, bfloat16", bf16_linear),
    Peer(SMALL_BLOCKS, "fp8gemm.nn.Fp8Linear of a weight in blocks of 32x32, folded", small_blocks_linear),
)


def _gate(name: str, limit: float, base: str, peer: str, least: int, most: float, *, mean: bool) -> Gate[Row]:
    """On the speed of ``peer`` relative to ``base`` with so many rows."""

    def speeds(rows: Sequence[Row]) -> Mapping[str, float | None]:
        return {row.at(row.shape): row.time_ratio(base, peer) for row in rows if least <= row.shape.m <= most}

    return Gate(name, limit, speeds, mean=mean)


GATES: Gates[Row] = Gates(
    (
        _gate(f"speed at M >= {MANY}", 1.5, BF16, OURS, MANY, float("inf"), mean=True),
        _gate(f"speed at M <= {FEW}", 1.3, BF16, OURS, 1, FEW, mean=True),
        _gate(f"speed of blocks of 32x32 at M >= {MANY}", 0.8, OURS, SMALL_BLOCKS, MANY, float("inf"), mean=False),
        _gate(f"speed of blocks of 32x32 at M <= {FEW}", 0.9, OURS, SMALL_BLOCKS, 1, FEW, mean=False),
    )
)
"""Of `Fp8Linear` relative to bfloat16; of blocks of 32x32 relative to those of 128x128."""
