"""Unquantised operands: what activations and weights look like, at their best and at their worst."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Gates = Literal["signed", "positive", "heavy"]
"""The kinds of data that the kernels' gates know."""

OUTLIER_SPACING = 512
"""One input channel in this many is an outlier."""

MASSIVE_SPACING = 64
"""One token in this many is a massive one."""

MASSIVE = 5e4
"""How much larger its two values are, at the least; twice that at the most, which has been seen in language models."""


@dataclass(frozen=True)
class Distribution:
    """How operands are drawn.

    Attributes:
        name: short name.
        description: for the report.
        gates: what the kernels' gates take such data for.
        activation: from (M, K) and a generator to float32 values on its device.
        weight: the same for (N, K).
    """

    name: str
    description: str
    gates: Gates
    activation: Callable[[int, int, torch.Generator], Tensor]
    weight: Callable[[int, int, torch.Generator], Tensor]


def normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Standard normal values."""
    return torch.randn(rows, columns, generator=generator, device=generator.device)


def student_t(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Student's t with 3 degrees of freedom: a normal value over the root mean square of three others."""
    squares = sum(normal(rows, columns, generator).square() for _ in range(3))
    return normal(rows, columns, generator) / torch.as_tensor(squares).div(3).sqrt()


def outlier_channels(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Normal values; one column in `OUTLIER_SPACING`, at least one, is 50 to 100 times larger."""
    values = normal(rows, columns, generator)
    count = math.ceil(columns / OUTLIER_SPACING)
    channels = torch.randperm(columns, generator=generator, device=generator.device)[:count]
    values[:, channels] *= 50 + 50 * torch.rand(count, generator=generator, device=generator.device)
    return values


def massive_tokens(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Normal values; one row in `MASSIVE_SPACING`, at least one, has two values `MASSIVE` to 2 `MASSIVE` large."""
    values = normal(rows, columns, generator)
    tokens = torch.randperm(rows, generator=generator, device=generator.device)[: math.ceil(rows / MASSIVE_SPACING)]
    channels = torch.randperm(columns, generator=generator, device=generator.device)[:2]
    sizes = 1 + torch.rand(len(tokens), 2, generator=generator, device=generator.device)
    values[tokens[:, None], channels] = MASSIVE * sizes
    return values


def positive(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Absolute values of normal ones."""
    return normal(rows, columns, generator).abs_()


DISTRIBUTIONS = (
    Distribution("normal", "standard normal activations and weights", "signed", normal, normal),
    Distribution(
        "heavy-tailed", "Student's t with 3 degrees of freedom, activations and weights", "heavy", student_t, student_t
    ),
    Distribution(
        "outlier channels",
        f"normal; one input channel in {OUTLIER_SPACING} is 50 to 100 times larger",
        "heavy",
        outlier_channels,
        normal,
    ),
    Distribution(
        "massive tokens",
        f"normal; one token in {MASSIVE_SPACING} has two values 50 000 to 100 000 times larger",
        "heavy",
        massive_tokens,
        normal,
    ),
    Distribution("all-positive", "absolute values of normal activations and weights", "positive", positive, positive),
)
