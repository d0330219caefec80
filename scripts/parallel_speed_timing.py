"""Timing of what several ranks do at once, for scripts/parallel_speed.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

Call = Callable[[], object]
Figures = dict[str, float | str]

WARM, CALLS_OF_GRAPH, LEAST_CALLS, MOST_CALLS = 3, 4, 10, 500
_LEAD_CYCLES, _LEAD_OF_BURST = 500_000, 4_000_000
"""Of a GPU, a quarter of a millisecond and two, in which hosts get ahead."""
_IDLE_S, _BURST_US = 0.03, 4e3


class Ranks:
    """All ranks, of which this is one, and their clock.

    Attributes:
        mesh, ranks, number, device: all of them, how many, which this is, and its GPU.
        tiny: whether this is on CPUs, where no figure means anything.
    """

    def __init__(self, mesh: DeviceMesh, device: torch.device, *, rounds: int, round_ms: int) -> None:
        self.mesh, self.device, self.tiny = mesh, device, device.type == "cpu"
        self.ranks, self.number = mesh.size(), mesh.get_local_rank()
        self._rounds, self._round_us = (1, 0.0) if self.tiny else (rounds, 1e3 * round_ms)
        self.generator, self._one = torch.Generator(device).manual_seed(7), torch.zeros(1, device=device)

    def rows(self, *shape: int) -> Tensor:
        """Random ones in bfloat16, the same on each rank."""
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.float32).bfloat16()

    def part(self, x: Tensor, dim: int = 0) -> Tensor:
        return x.chunk(self.ranks, dim)[self.number].contiguous()

    def most(self, value: float) -> float:
        """The largest of all ranks', which each of them gets."""
        found = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found.item())

    def together(self) -> None:
        """Ranks go on at once, with nothing left to do."""
        self._synchronize()
        dist.barrier()
        self._synchronize()

    def _synchronize(self) -> None:
        if not self.tiny:
            torch.cuda.synchronize(self.device)

    def _round(self, call: Call, times: int, lead: int = _LEAD_CYCLES) -> float:
        """Microseconds of a call, of so many."""
        self.together()
        if self.tiny:
            start = time.perf_counter()
            for _ in range(times):
                call()
            return (time.perf_counter() - start) / times * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(lead)
        dist.all_reduce(self._one)  # so that GPUs begin together, too
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / times * 1e3

    def _once(self, call: Call) -> float:
        """Of a single call, behind some that it needs to get ready."""
        for _ in range(1 if self.tiny else WARM):
            call()
        return self.most(self._round(call, 1))

    def us(self, call: Call) -> float:
        """Of a call, the slowest rank's median."""
        once = self._once(call)
        times = min(MOST_CALLS, max(1 if self.tiny else LEAST_CALLS, round(self._round_us / max(once, 1.0))))
        return self.most(statistics.median(self._round(call, times) for _ in range(self._rounds)))

    def burst_us(self, call: Call) -> float:
        """Of a call, a few milliseconds behind a pause, in which GPUs have the clock of those that rest."""
        once, found = self._once(call), []
        for _ in range(self._rounds):
            self.together()
            time.sleep(0 if self.tiny else _IDLE_S)
            found.append(self._round(call, max(1, round(_BURST_US / max(once, 1.0))), _LEAD_OF_BURST))
        return self.most(statistics.median(found))

    def graph_us(self, call: Call) -> float:
        """Of a call as a part of a CUDA graph."""
        for _ in range(1 if self.tiny else WARM):
            call()
        if self.tiny:
            return self.us(call)
        self.together()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS_OF_GRAPH):
                call()
        return self.us(graph.replay) / CALLS_OF_GRAPH

    def host_us(self, calls: Mapping[str, Call]) -> dict[str, list[float]]:
        """Of this rank's CPU for each call, while its GPU has work to do; in turns, because others use the CPU too."""
        times, rounds = (2, 1) if self.tiny else (200, 5 * self._rounds)
        found: dict[str, list[float]] = {name: [] for name in calls}
        for index in range(rounds + 1):
            for name, call in calls.items():
                self.together()
                start = time.perf_counter()
                for _ in range(times):
                    call()
                if index:
                    found[name].append((time.perf_counter() - start) / times * 1e6)
        return found

    def figures(
        self, makes: Mapping[str, Callable[[], Call]], time_: Callable[[Call], float], *, twice: bool = False
    ) -> Figures:
        """Microseconds of each; what went wrong, in words, where that is on all ranks alike.

        Args:
            twice: once more in the other order, and the mean of both: GPUs grow warmer while others are timed.
        """
        found: Figures = {}
        for names in (list(makes), list(makes)[::-1]) if twice else (list(makes),):
            for name in names:
                try:
                    us, before = time_(makes[name]()), found.get(name)
                    found[name] = (us + before) / 2 if isinstance(before, float) else us
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return found


def ratio(figures: Figures, one: str, other: str) -> Figures:
    """How many times as fast the other is, under a name of its own; nothing where one of them failed."""
    first, second = figures.get(one), figures.get(other)
    if isinstance(first, float) and isinstance(second, float) and second:
        return {f"{one}/{other}": first / second}
    return {}


@dataclass(frozen=True)
class Part:
    """A section while it is measured: the ranks, and where its lines go."""

    world: Ranks
    add: Callable[[str, Figures], None]


def bound(model: Callable[..., object], *given: Tensor) -> Call:
    return lambda: model(*given)


def ready(calls: Mapping[str, Call]) -> dict[str, Callable[[], Call]]:
    """What `Ranks.figures` takes, of calls that are there."""
    return {kind: partial(_itself, call) for kind, call in calls.items()}


def _itself(call: Call) -> Call:
    return call
