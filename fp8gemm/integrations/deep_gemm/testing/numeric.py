"""How far two tensors are apart, and how large tensors are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def calc_diff(x: Tensor, y: Tensor) -> Tensor:
    """``sum (x - y)^2 / sum (x^2 + y^2)``, which is DeepGEMM's ``1 - 2 sum x y / sum (x^2 + y^2)``.

    Returns:
        One float64 number on the device of ``x``: 0 where all elements of both are 0.
    """
    x, y = x.double(), y.double()
    error, size = (x - y).square().sum(), (x.square() + y.square()).sum()
    return torch.where(size == 0, size, error / size)


def count_bytes(*tensors: Tensor | Iterable[Tensor | None] | None) -> int:
    """The bytes of all elements of tensors, and of those in tuples and lists; None has none."""
    return sum(_bytes_of(each) for each in tensors)


def _bytes_of(tensors: Tensor | Iterable[Tensor | None] | None) -> int:
    if tensors is None:
        return 0
    return tensors.numel() * tensors.element_size() if isinstance(tensors, Tensor) else count_bytes(*tensors)
