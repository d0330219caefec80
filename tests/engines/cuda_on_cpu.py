"""Code that says "cuda", run on the CPU: where a device is named, the CPU is meant."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _there(value: Any) -> Any:
    if isinstance(value, (str, torch.device)) and str(value).split(":")[0] == "cuda":
        return torch.device("cpu")
    return value


class CudaOnCpu(TorchFunctionMode):
    """Every torch function is given the CPU for "cuda"."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {name: _there(value) for name, value in (kwargs or {}).items()}
        if function is torch.Tensor.cuda:
            return args[0]
        return function(*map(_there, args), **given)


class _Stream:
    """The only one, into which nothing is captured."""

    def is_capturing(self) -> bool:
        return False


def redirect() -> None:
    """For the rest of the process."""
    torch.set_default_device = lambda _: None  # it has a mode of its own, which would be told "cuda"
    torch.cuda.current_device = lambda: 0  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.accelerator.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.accelerator.empty_cache = lambda: None
    torch.accelerator.current_stream = lambda *_: _Stream()
    CudaOnCpu().__enter__()
