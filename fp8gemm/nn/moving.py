"""How a layer's parameters move between devices without a change of their values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_BIAS_DTYPES = (torch.bfloat16, torch.float32)


def moving_only(fn: Change, *, bias: Tensor | None) -> Change:
    """What ``fn`` does to a parameter's place and memory, without what it does to floating-point dtypes.

    ``fn`` sees codes and scales as integers of their size, which ``half()`` and the like leave alone. ``bias`` may
    change to a dtype that the kernels add; from any other it stays what it was.
    """

    def move(tensor: Tensor) -> Tensor:
        if tensor is bias:
            moved = fn(tensor)
            if moved.dtype in _BIAS_DTYPES:
                return moved
        integers = tensor.view(_INTEGERS[tensor.element_size()])
        moved = fn(integers)
        if moved.dtype != integers.dtype:  # as of `Module.type`, which changes integers too
            moved = integers.to(moved.device)
        return moved.view(tensor.dtype)

    return move
