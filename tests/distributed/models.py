"""What the checks of several ranks multiply, the same on each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fp8gemm.nn import Fp8Linear

HIDDEN, WIDE = 512, 1024
"""Whole blocks for each of four ranks."""


class Mlp(nn.Module):
    """Two layers, as tensor parallelism pairs them."""

    def __init__(self, *, bias: bool = True, device: str = "cpu") -> None:
        super().__init__()
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": torch.bfloat16}
        self.up = Fp8Linear.from_linear(nn.Linear(HIDDEN, WIDE, **options))
        self.down = Fp8Linear.from_linear(nn.Linear(WIDE, HIDDEN, **options))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


def mlp(*, bias: bool = True) -> Mlp:
    torch.manual_seed(1)
    return Mlp(bias=bias)


def inputs(*leading: int, columns: int = HIDDEN) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*leading, columns, generator=generator).to(torch.bfloat16)


def part(x: Tensor, dim: int, rank: int, ranks: int) -> Tensor:
    return x.chunk(ranks, dim)[rank].contiguous()


SENT = 1e-2
"""More than the errors of parts of a sum that are rounded to bfloat16 before they are added."""


@contextmanager
def fsdp_of_several_dtypes() -> Iterator[None]:
    """A block of code in which FSDP2 is given layers of ours; the check is skipped where it wants one dtype."""
    try:
        yield
    except AssertionError as error:
        if "uniform original parameter dtype" not in str(error):
            raise
        pytest.skip(f"FSDP2 of torch {torch.__version__} takes no module whose parameters are of several dtypes")


@contextmanager
def sent() -> Iterator[list[tuple[str, int]]]:
    """Names of the collectives of a block of code, and bytes that this rank puts into each."""
    found: list[tuple[str, int]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "c10d":
                given = args[1] if func._schema.arguments[0].name.startswith("output") else args[0]
                tensors = given if isinstance(given, (list, tuple)) else [given]
                found.append((func._opname.strip("_"), sum(each.nbytes for each in tensors)))
            return func(*args, **(kwargs or {}))

    with Watch():
        yield found
