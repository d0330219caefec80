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
    codes = {name: getattr(layer, name).detach().view(torch.uint8) for name in names}
    return {**layer.__dict__, "_parameters": {**layer._parameters, **codes}}


def codes_from_bytes(layer: nn.Module, *names: str) -> None:
    """The codes of a layer that was given such a state, as FP8 again."""
    codes = {name: frozen(getattr(layer, name).view(CODES)) for name in names}
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
        part = getattr(tensor, "_local_tensor", None)  # a DTensor's, which torch 2.6 cannot view as another dtype
        if part is not None:
            place: Any = tensor
            options = {"run_check": False, "shape": tensor.shape, "stride": tensor.stride()}
            whole: Tensor = type(place).from_local(move(part), place.device_mesh, place.placements, **options)
            return whole
        integers = tensor.view(_INTEGERS[tensor.element_size()])
        moved = fn(integers)
        if moved.dtype != integers.dtype:  # as of `Module.type`, which changes integers too
            moved = integers.to(moved.device)
        return moved.view(tensor.dtype)

    return move
