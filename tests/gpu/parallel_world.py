"""What ranks on GPUs know, and how their checks see what they did."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fp8gemm.parallel import symmetric

REPLAYS = 200
"""Of a CUDA graph."""


@dataclass
class Rank:
    """What a check is given; ``generator`` and ``chance`` are alike on all ranks."""

    number: int
    ranks: int
    mesh: DeviceMesh
    generator: torch.Generator
    chance: random.Random

    def rows(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device).bfloat16()

    def part(self, x: Tensor, dim: int = 0) -> Tensor:
        return x.chunk(self.ranks, dim)[self.number].contiguous()

    def late(self) -> None:
        """One of the ranks has more to do first, another one each time."""
        rank, cycles = self.chance.randrange(self.ranks), self.chance.randrange(1, 2_000_000)
        if rank == self.number:
            torch.cuda._sleep(cycles)


@contextmanager
def uses() -> Iterator[list[str]]:
    """Names of what is asked of symmetric memory in a block of code."""
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("barrier", "copied", "summed"):
            real = getattr(symmetric._CudaMemory, name)

            def noted(memory: Any, *given: Any, real: Any = real, name: str = name) -> Any:
                found.append(name)
                return real(memory, *given)

            patch.setattr(symmetric._CudaMemory, name, noted)
        yield found


def same_sums(rank: Rank, out: Tensor, right: Tensor) -> bool:
    if rank.ranks == 2:
        return torch.equal(out, right)
    return bool((out - right).float().norm() <= 1e-2 * right.float().norm())
