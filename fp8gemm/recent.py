"""Calls that were made before need no second check: their launches, by all that they were checked for."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

_Value = TypeVar("_Value")

PLAIN = frozenset((Tensor, Parameter))
"""Types of tensors that are no more than memory; what else there is, a `FakeTensor` say, is for the operators."""


class Recent(Generic[_Value]):
    """A dictionary of the latest entries; threads may share it.

    Attributes:
        get: the value of a key, or None.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[Hashable, _Value] = {}
        self._lock = threading.Lock()
        self.get = self._values.get

    def keep(self, key: Hashable, value: _Value) -> None:
        """Enter a value; the oldest one makes room."""
        with self._lock:
            if len(self._values) >= self._size:
                del self._values[next(iter(self._values))]
            self._values[key] = value


def identity(tensor: Tensor) -> tuple[Any, ...]:
    """What a check looks at: equal for two tensors of one address that it cannot tell apart, gradients aside."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether gradients are enabled and one of these requires one."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False
