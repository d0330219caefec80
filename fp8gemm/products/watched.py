"""Which calls are for the operators: those that are traced, watched by a mode, or given more than memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from fp8gemm.checks.tensors import described
from fp8gemm.errors import InputError
from fp8gemm.ops import heed_dtensors

_PLAIN = frozenset((Tensor, Parameter))
"""Types of tensors that are no more than memory."""

# NOTE: torch's own, because their Python wrappers take longer than all the rest.
_active_modes = torch._C._len_torch_dispatch_stack
"""How many modes watch what is called."""
_transforms = torch._C._functorch.peek_interpreter_stack
"""The innermost of functorch's transforms that there is; it may wrap what is made under it."""


def is_watched() -> bool:
    """Whether calls are traced, or a mode or transform watches them."""
    return is_dynamo_compiling() or bool(_active_modes() or _transforms())


def is_plain(operand: object) -> bool:
    """Whether an operand is no more than memory."""
    return type(operand) in _PLAIN


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
    """Whether a call is for its operator: it is watched, or some operand is more than memory, a `FakeTensor` say.

    Args:
        names: of the operands in order, separated by spaces; "c?" may be None.
        first, second, third, fourth, fifth, sixth, seventh: the operands.

    Raises:
        InputError: one of them is no tensor.
    """
    if is_dynamo_compiling():
        return True  # which need not trace the rest
    # NOTE: one by one, because a loop takes longer, and repeated calls are short.
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
    heed_dtensors((first, second, third, fourth, fifth, sixth, seventh))
    return True
