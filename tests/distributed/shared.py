"""What takes the place of symmetric memory on the CPU: files that all ranks map, and gloo's barrier.

It is unkind within the rules: a copy is made at once or not before it is waited for, and ranks are late by turns, so
that what is not waited for, or written before all have read it, shows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fp8gemm.parallel import symmetric
from fp8gemm.parallel.symmetric import Memory

_LATE_S = 2e-3


class SharedMemory(Memory):
    """Of processes of one machine; all ranks make it at once."""

    def __init__(self, group: ProcessGroup, size: int, path: Path, used: list[str]) -> None:
        super().__init__(group.rank(), group.size())
        self._group, self._used = group, used
        self._random = random.Random(self.rank)
        with (path.parent / f"{path.name}.{self.rank}").open("wb") as own:
            own.truncate(size)
        dist.barrier(group=group)
        names = [f"{path}.{rank}" for rank in range(self.ranks)]
        self._parts = [torch.from_file(name, shared=True, size=size, dtype=torch.uint8) for name in names]
        dist.barrier(group=group)
        Path(names[self.rank]).unlink()

    def part(self, rank: int, start: int, size: int) -> Tensor:
        found = self._parts[rank][start : start + size]
        assert found.numel() == size, "past the end"
        return found

    def barrier(self) -> None:
        self._used.append("barrier")
        dist.barrier(group=self._group)
        if self._random.random() < 0.25:
            time.sleep(self._random.random() * _LATE_S)

    def copied(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        self._used.append("copy")
        assert to.is_contiguous() and source.is_contiguous()
        assert (to.shape, to.dtype) == (source.shape, source.dtype)
        if self._random.random() < 0.5:
            return lambda: _copy(to, source)
        _copy(to, source)
        return lambda: None

    def summed(self, x: Tensor) -> Tensor:
        assert x.data_ptr() == self._parts[self.rank].data_ptr()
        self._used.append("sum")
        self.barrier()
        out = sum((self.at(rank, tuple(x.shape), x.dtype).float() for rank in range(self.ranks)), torch.zeros(()))
        self.barrier()
        return out.to(x.dtype)

    def enter(self) -> None:
        pass


def _copy(to: Tensor, source: Tensor) -> None:
    to.copy_(source)


@dataclass
class Uses:
    """What was done with memory: sizes that were made, and "barrier", "copy" or "sum" for each that there was."""

    made: list[int] = field(default_factory=list)
    did: list[str] = field(default_factory=list)

    def since(self) -> list[str]:
        """What was done since the last time that this was asked."""
        did, self.did[:] = list(self.did), []
        return did


@contextmanager
def shared_memory(directory: Path) -> Iterator[Uses]:
    """A block of code in which all ranks of all groups reach each other's memory."""
    uses = Uses()
    numbers = count()
    directory.mkdir(exist_ok=True)

    def opened(group: ProcessGroup, device: torch.device, size: int) -> Memory:
        uses.made.append(size)
        return SharedMemory(group, size, directory / f"{group.group_name}-{next(numbers)}", uses.did)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric, "opened", opened)
        patch.setattr(symmetric, "refusal", lambda group, device: "")
        patch.setattr(symmetric, "_memories", type(symmetric._memories)())
        yield uses
