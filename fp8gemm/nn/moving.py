"""How a layer's parameters are made, and move between devices and into files without a change of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fp8gemm.checks.dtypes import CODES

Change = Callable[[Tensor], Tensor]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_BIAS_DTYPES = (torch.bfloat16, torch.float32)


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter of a layer that is for inference."""
    return nn.Parameter(tensor, requires_grad=False)


def zero_codes(*shape: int, device: torch.device | str | None) -> nn.Parameter:
    """FP8 codes, made as bytes, because not every device fills FP8."""
    return frozen(torch.zeros(shape, dtype=torch.uint8, device=device).view(CODES))


def state_with_bytes(layer: nn.Module, *names: str) -> dict[str, Any]:
    """What pickle keeps of a layer: these codes as bytes, because what it writes of an FP8 tensor torch cannot load."""
    codes = {name: _viewed(getattr(layer, name).detach(), torch.uint8) for name in names}
    return {**layer.__dict__, "_parameters": {**layer._parameters, **codes}}


def codes_from_bytes(layer: nn.Module, *names: str) -> None:
    """The codes of a layer that was given such a state, as FP8 again."""
    codes = {name: frozen(_viewed(getattr(layer, name), CODES)) for name in names}
    layer._parameters = {**layer._parameters, **codes}


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
        if (part := part_of(tensor)) is not None:
            return whole_of(move(part), tensor)
        integers = tensor.view(_INTEGERS[tensor.element_size()])
        moved = fn(integers)
        if moved.dtype != integers.dtype:  # as of `Module.type`, which changes integers too
            moved = integers.to(moved.device)
        return moved.view(tensor.dtype)

    return move


def _viewed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """As another dtype of the same size."""
    part = part_of(tensor)
    return tensor.view(dtype) if part is None else whole_of(part.view(dtype), tensor)


def here(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor: its part of a DTensor, all of any other."""
    part = part_of(tensor)
    return tensor if part is None else part


def part_of(tensor: Tensor) -> Tensor | None:
    """This rank's of a DTensor, which torch 2.6 cannot view as another dtype; None of any other tensor."""
    return getattr(tensor, "_local_tensor", None)


def whole_of(part: Tensor, placed: Any) -> Tensor:
    """The DTensor that is ``part`` here, and divided as ``placed`` is."""
    options = {"run_check": False, "shape": placed.shape, "stride": placed.stride()}
    whole: Tensor = type(placed).from_local(part, placed.device_mesh, placed.placements, **options)
    return whole
