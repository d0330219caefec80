"""The gated MLPs that scripts/parallel_speed.py divides: ours, and torch's in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from parallel_speed_timing import Ranks
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard, parallel
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import silu

import fp8gemm
from fp8gemm.nn import Fp8Linear
from fp8gemm.parallel import ColwiseParallel, RowwiseParallel

TOKENS, ALL = Shard(0), Replicate()


@dataclass(frozen=True)
class Sizes:
    name: str
    hidden: int
    wide: int


MODELS = Sizes("llama-70b", 8192, 28672), Sizes("deepseek-v3", 7168, 18432)
NARROW = Sizes("narrow", 4096, 4096)
"""Whose products take so little that what the host does counts."""
TINY = (Sizes("tiny", 512, 1024),)


class Mlp(nn.Module):
    """Gate and up as one layer, and down; fused between them where the layers are ours."""

    def __init__(self, gate_up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down

    def forward(self, x: Tensor) -> Tensor:
        both: Tensor = self.gate_up(x)
        if isinstance(self.down, Fp8Linear):
            ours: Fp8Linear = self.down
            return ours.forward_quantized(*fp8gemm.quantize_silu_mul(both))
        gate, up = both.chunk(2, dim=-1)
        out: Tensor = self.down(silu(gate) * up)
        return out


class Mlps:
    """All of one model's: ours around the same tensors, torch's in bfloat16."""

    def __init__(self, world: Ranks, sizes: Sizes) -> None:
        self._world = world
        self._gate_up: Tensor = world.rows(2 * sizes.wide, sizes.hidden) * sizes.hidden**-0.5
        self._down: Tensor = world.rows(sizes.hidden, sizes.wide) * sizes.wide**-0.5
        self._quantized = fp8gemm.quantize_weight(self._down)

    def _rows(self, *, divided: bool) -> Tensor:
        """Of gate and up: where they are divided, those of each rank together."""
        if not divided:
            return self._gate_up
        return torch.cat([half for each in zip(*self._halves(), strict=True) for half in each])

    def _halves(self) -> list[tuple[Tensor, ...]]:
        return [half.chunk(self._world.ranks) for half in self._gate_up.chunk(2)]

    def ours(self, place: Any = None, *, overlap: bool | None = None) -> Mlp:
        """All of it without ``place``, that of tokens."""
        rows = self._rows(divided=place is not None)
        terms = fp8gemm.quantize_weight(rows), self._quantized
        model = Mlp(*(Fp8Linear.from_quantized(*each) for each in terms))
        up = ColwiseParallel(input_layouts=place, overlap=overlap)
        down = RowwiseParallel(output_layouts=place, overlap=overlap)
        return model if place is None else self._divided(model, up, down)

    def bfloat16(self, place: Any = None) -> Mlp:
        layers = []
        for weight in (self._rows(divided=place is not None), self._down):
            layers.append(nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta"))
            layers[-1].weight = nn.Parameter(weight, requires_grad=False)
        styles = parallel.ColwiseParallel(input_layouts=place), parallel.RowwiseParallel(output_layouts=place)
        return Mlp(*layers) if place is None else self._divided(Mlp(*layers), *styles)

    def _divided(self, model: Mlp, up: Any, down: Any) -> Mlp:
        parallelize_module(model, self._world.mesh, {"gate_up": up, "down": down}, src_data_rank=None)
        return model
