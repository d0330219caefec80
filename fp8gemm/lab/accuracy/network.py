"""A small random network of SiLU-gated layers: what the errors of its products do to its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from fp8gemm.lab.accuracy.data import Distribution, normal
from fp8gemm.lab.accuracy.figures import compare
from fp8gemm.lab.accuracy.products import Product

Linear = Callable[[Tensor, Tensor], Tensor]
"""From (M, K) and a weight (N, K) to (M, N), of the first one's dtype."""

DESCRIPTION = (
    "RMS norm, SiLU-gated linear layers, a residual around every layer but the first, so that nothing bypasses FP8, "
    "and an unquantised readout; bfloat16 inputs by distribution, bfloat16 weights normal. A random readout's best "
    "classes lie closer together than a trained one's, so its top-1 changes more easily"
)


@dataclass(frozen=True)
class NetworkShape:
    """Sizes: tokens, width, width inside a layer, layers, and classes of the readout."""

    tokens: int
    hidden: int
    inner: int
    layers: int
    classes: int


@dataclass(frozen=True)
class Agreement:
    """A network against the float64 network of the same weights and inputs.

    Attributes:
        relative_rms: of the last hidden state, normalised.
        top1: share of the tokens whose largest logit is the same one.
    """

    relative_rms: float
    top1: float


@dataclass(frozen=True)
class Network:
    """Weights in bfloat16: (gate, up, down) of each layer, and the readout in float64."""

    layers: list[tuple[Tensor, Tensor, Tensor]]
    readout: Tensor

    @classmethod
    def random(cls, shape: NetworkShape, generator: torch.Generator) -> Network:
        """Normal weights that keep an activation's size."""

        def weight(rows: int, columns: int) -> Tensor:
            return (normal(rows, columns, generator) / math.sqrt(columns)).bfloat16()

        layers = [
            (
                weight(shape.inner, shape.hidden),
                weight(shape.inner, shape.hidden),
                weight(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]
        return cls(layers, weight(shape.classes, shape.hidden).double())

    def hidden_state(self, x: Tensor, linear: Linear) -> Tensor:
        """The last hidden state, (tokens, hidden), in x's dtype; what is between the linear layers is computed in
        float32, or in float64 for float64."""
        state = None
        for gate, up, down in self.layers:
            inputs = _normalised(x if state is None else state)
            wide = torch.promote_types(x.dtype, torch.float32)
            gated = silu(linear(inputs, gate).to(wide)) * linear(inputs, up).to(wide)
            update = linear(gated.to(x.dtype), down)
            state = update if state is None else state + update
        assert state is not None, "a network has layers"
        return _normalised(state)


def measure_network(
    distribution: Distribution, shape: NetworkShape, products: Sequence[Product], generator: torch.Generator
) -> dict[str, Agreement]:
    """Each product's agreement, by its name."""
    network = Network.random(shape, generator)
    x = distribution.activation(shape.tokens, shape.hidden, generator).bfloat16()
    exact = network.hidden_state(x.double(), lambda values, weight: values @ weight.double().t())
    expected = (exact @ network.readout.t()).argmax(dim=1)
    agreement = {}
    for product in products:
        state = network.hidden_state(x, _linear(product)).double()
        same = (state @ network.readout.t()).argmax(dim=1) == expected
        agreement[product.name] = Agreement(compare(state, exact).relative_rms, float(same.double().mean()))
    return agreement


def _linear(product: Product) -> Linear:
    return lambda values, weight: product.multiply(values, weight).out


def _normalised(values: Tensor) -> Tensor:
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    return (wide * wide.square().mean(dim=1, keepdim=True).add(1e-6).rsqrt()).to(values.dtype)
