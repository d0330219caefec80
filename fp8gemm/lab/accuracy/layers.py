"""What FP8 costs each linear layer of a network, on the inputs that the float32 network gives it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fp8gemm.lab.accuracy.encoder import Batch, linear_layers
from fp8gemm.nn import Fp8Linear


@dataclass(frozen=True)
class LayerNoise:
    """Signal to noise ratios of one layer's outputs, bias included, against the float32 layer's on the same inputs.

    Attributes:
        name: dotted name in the network.
        n, k: its weight is N x K.
        sqnr_db: by form of the layer, "fp8" and "bf16".
    """

    name: str
    n: int
    k: int
    sqnr_db: dict[str, float]


@dataclass
class _Powers:
    """Sums of squares over the tokens: of the float32 layer's output, and of the error of each form."""

    signal: float = 0.0
    noise: dict[str, float] = field(default_factory=lambda: {"fp8": 0.0, "bf16": 0.0})

    def ratios(self) -> dict[str, float]:
        """Signal to noise in decibels."""
        return {form: 10 * math.log10(self.signal / noise) if noise else math.inf for form, noise in self.noise.items()}


@torch.no_grad()
def measure_layers(network: nn.Module, batches: Sequence[Batch]) -> list[LayerNoise]:
    """Each linear layer of a float32 network, over all tokens that are no padding."""
    layers = {name: layer for name, layer in linear_layers(network).items() if isinstance(layer, nn.Linear)}
    powers = {name: _Powers() for name in layers}
    masks: list[Tensor] = []  # of the batch that is on its way
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(_observer(layer, powers[name], masks)))
        for batch in batches:
            masks[:] = [batch.mask.bool()]
            network(input_ids=batch.tokens, attention_mask=batch.mask)
    return [
        LayerNoise(name, layer.out_features, layer.in_features, powers[name].ratios()) for name, layer in layers.items()
    ]


def _observer(layer: nn.Linear, powers: _Powers, masks: Sequence[Tensor]) -> Callable[..., None]:
    """A hook that adds up what the other forms of the layer make of the same inputs."""
    fp8, bf16 = Fp8Linear.from_linear(layer), copy.deepcopy(layer).bfloat16()

    def observe(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        rows, exact = inputs[0][masks[0]], output[masks[0]].double()
        powers.signal += float(exact.square().sum())
        for form, out in (("fp8", fp8(rows)), ("bf16", bf16(rows.bfloat16()))):
            powers.noise[form] += float((out.double() - exact).square().sum())

    return observe
