"""Which calls are for the operators, and which were made before and need no second check: their launches, by all that
they were checked for."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from fp8gemm.checks.tensors import described
from fp8gemm.errors import InputError

_Value = TypeVar("_Value")

PLACES = 8
"""Addresses of new outputs that launches of one call are kept for: an allocator gives the same few in turn."""
UNREADABLE = (AttributeError, RuntimeError, TypeError)
"""What reading the identity of an operand raises that a check refuses: None, a sparse tensor, a dtype of no hash."""

_PLAIN = frozenset((Tensor, Parameter))
"""Types of tensors that are no more than memory."""

# NOTE: torch's own, because their Python wrappers take longer than all the rest.
active_modes = torch._C._len_torch_dispatch_stack
"""How many modes watch what is called."""
transforms = torch._C._functorch.peek_interpreter_stack
"""The innermost of functorch's transforms that there is; it may wrap what is made under it."""


def is_watched() -> bool:
    """Whether calls are traced, or a mode or transform watches them."""
    return is_dynamo_compiling() or bool(active_modes() or transforms())


def goes_to_operator(
    names: str,
    first: object,
    second: object = None,
    third: object = None,
    fourth: object = None,
    fifth: object = None,
    sixth: object = None,
    seventh: object = None,
) -> bool:
    """Whether a call is for its operator: it is traced, a mode or transform watches it, or some operand is more than
    memory, a `FakeTensor` say.

    Args:
        names: of the operands in order, separated by spaces; "c?" may be None.
        first, second, third, fourth, fifth, sixth, seventh: the operands.

    Raises:
        InputError: one of them is no tensor.
    """
    # NOTE: one by one, because a loop takes longer, and repeated calls are short.
    if is_dynamo_compiling():
        return True
    if (
        type(first) in _PLAIN
        and (second is None or type(second) in _PLAIN)
        and (third is None or type(third) in _PLAIN)
        and (fourth is None or type(fourth) in _PLAIN)
        and (fifth is None or type(fifth) in _PLAIN)
        and (sixth is None or type(sixth) in _PLAIN)
        and (seventh is None or type(seventh) in _PLAIN)
    ):
        return is_watched()
    for name, operand in zip(names.split(), (first, second, third, fourth, fifth, sixth, seventh), strict=False):
        is_missing = operand is None and name.endswith("?")
        if not is_missing and not isinstance(operand, Tensor):
            wanted = "a torch.Tensor or None" if name.endswith("?") else "a torch.Tensor"
            raise InputError(f"{name.rstrip('?')}: expected {wanted}, got {described(operand)}")
    return True


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
