"""Kernels launched very often: many launches in a CUDA graph, each compared on the GPU with what is right.

    lanes = Lanes(device, len(sets))
    graphs = [Repeated(label, kernel, sets, rounds=10, lanes=lanes)]
    played = play(graphs, 100_000, limit_s=180.0)

`play_parts` takes graphs that are still to be made, and ends at a part that is wrong before the rest is compiled.

Outputs are poisoned before they are written, and no two launches of a replay write the same one. Each set of operands
has a stream of its own, on which its launches follow each other with nothing between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request

PROGRESS_S = 20.0
"""Seconds that one replay of a graph may take, a thousand times what it needs."""

PART = 32
"""Kernels that are compiled together. All processors have work by them, and few are in vain where one shows a fault."""

Launch = Callable[[], object]
Bind = Callable[[Any, Sequence[Tensor], int], Launch]
"""From a kernel, its outputs and a CUstream to a launch."""


@dataclass(frozen=True)
class Output:
    """A tensor that a launch writes.

    Attributes:
        before: what it holds before. Where something must be written this is no value that is right: NaN, for one.
        right: what it holds after; of the same shape and dtype.
    """

    before: Tensor
    right: Tensor


@dataclass(frozen=True)
class Prepared:
    """Operands of a launch.

    Attributes:
        outputs: what it writes.
        bind: makes the launch for outputs like these; it holds the operands.
    """

    outputs: tuple[Output, ...]
    bind: Bind


class Wrong(NamedTuple):
    """What was not right: launches, and elements of them."""

    launches: int
    elements: int

    def __str__(self) -> str:
        return f"{self.elements} wrong elements in {self.launches} launches"


class Graph(Protocol):
    """Launches that can be replayed.

    Attributes:
        name: what is launched.
        launches: of a replay.
    """

    name: str
    launches: int

    def replay(self) -> Wrong | None:
        """What was wrong so far; None if the replay does not end."""


G = TypeVar("G", bound=Graph)


def wrong_in(counts: Tensor) -> Wrong:
    """What was counted on the GPU, which is waited for."""
    launches, elements = counts.tolist()
    return Wrong(launches, elements)


def replay_ends(graph: torch.cuda.CUDAGraph, done: torch.cuda.Event) -> bool:
    """Replay a graph on the current stream and wait for it; whether it ends."""
    graph.replay()
    done.record()
    deadline = time.monotonic() + PROGRESS_S
    while not done.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(2e-5)
    return True


def launch_rounds(kernel: Any, prepared: Prepared, wrong: Tensor, *, rounds: int, stream: int) -> None:
    """Launch into poisoned outputs as often as there are rounds, and add to ``wrong`` what is not right then.

    Args:
        kernel: what ``prepared`` binds.
        prepared: operands of each launch.
        wrong: (2,) int64, as `Wrong`.
        rounds: launches.
        stream: the CUstream, torch's current one.
    """
    outs = [torch.stack([output.before] * rounds) for output in prepared.outputs]
    for index in range(rounds):
        prepared.bind(kernel, [out[index] for out in outs], stream)()
    found = torch.zeros(rounds, dtype=torch.int64, device=wrong.device)
    for out, output in zip(outs, prepared.outputs, strict=True):
        found += (out != output.right).flatten(1).sum(1)  # NaN differs from everything
    wrong[0].add_((found > 0).sum())
    wrong[1].add_(found.sum())


class Lanes:
    """Streams, and the memory that outputs on them take, for graphs that are replayed one after the other.

    Args:
        device: the GPU.
        count: of streams.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        self.streams = [torch.cuda.Stream(device) for _ in range(count)]
        self.main = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()


class Repeated:
    """A graph of many launches of one kernel on several streams, and a count of what was wrong.

    Args:
        name: of the kernel.
        kernel: what the sets bind.
        sets: operands, each for a stream.
        rounds: launches of each set in a replay.
        lanes: as many as there are sets. Graphs that share them use the same memory for their outputs.

    Attributes:
        name: as given.
        launches: of a replay.
    """

    def __init__(self, name: str, kernel: Any, sets: Sequence[Prepared], *, rounds: int, lanes: Lanes) -> None:
        self.name, self.launches = name, rounds * len(sets)
        self._sets, self._kernel = sets, kernel
        self._wrong = torch.zeros(len(sets), 2, dtype=torch.int64, device=lanes.device)  # each stream has one
        self._graph, self._done = torch.cuda.CUDAGraph(), torch.cuda.Event()
        torch.cuda.synchronize(lanes.device)
        with torch.cuda.stream(lanes.main):
            self._graph.capture_begin(pool=lanes.pool)
            for stream in lanes.streams:
                stream.wait_stream(lanes.main)
            for each, wrong, stream in zip(sets, self._wrong, lanes.streams, strict=True):
                with torch.cuda.stream(stream):
                    launch_rounds(kernel, each, wrong, rounds=rounds, stream=stream.cuda_stream)
            for stream in lanes.streams:
                lanes.main.wait_stream(stream)
            self._graph.capture_end()

    def replay(self) -> Wrong | None:
        """What was wrong so far; None if the replay does not end."""
        return wrong_in(self._wrong.sum(0)) if replay_ends(self._graph, self._done) else None


@dataclass(frozen=True)
class Played:
    """What came of many replays.

    Attributes:
        launches, seconds: how many, and how long they took.
        wrong: of all graphs.
        worst: the name of the graph with most wrong launches, or of the one that does not end; empty without.
        hangs: whether one does not end. The GPU is then of no use any more.
        enough: whether there were as many launches as were wanted, or reason to stop before.
    """

    launches: int
    seconds: float
    wrong: Wrong
    worst: str
    hangs: bool
    enough: bool


def play(graphs: Sequence[Graph], wanted: int, *, limit_s: float, to_the_end: bool = False) -> Played:
    """Replay graph after graph, until there were as many launches as wanted or the time is over.

    Args:
        graphs: whose launches are counted together.
        wanted: launches.
        limit_s: for all of them.
        to_the_end: go on after what was wrong.
    """
    found: dict[str, Wrong] = {}
    launches, started = 0, time.monotonic()

    def played(*, hanging: str = "", enough: bool = True) -> Played:
        worst = max(found, key=lambda name: found[name].launches, default="")
        wrong = Wrong(sum(each.launches for each in found.values()), sum(each.elements for each in found.values()))
        return Played(launches, time.monotonic() - started, wrong, hanging or worst, bool(hanging), enough)

    while launches < wanted:
        for graph in graphs:
            wrong = graph.replay()
            launches += graph.launches
            if wrong is None:
                return played(hanging=graph.name)
            if wrong.launches:
                found[graph.name] = wrong
                if not to_the_end:
                    return played()
        if time.monotonic() - started > limit_s:
            return played(enough=launches >= wanted)
    return played()


def make_in_parts(pairs: Sequence[tuple[Any, Any]], repeat: Callable[..., Repeated]) -> Iterator[list[Repeated]]:
    """Compile and capture kernels, a part of them at a time.

    Args:
        pairs: problem and config of each. A part is spread over all of them, for neighbours are much alike.
        repeat: makes the graph of one.
    """
    parts = -(-len(pairs) // PART)
    for part in range(parts):
        some = pairs[part::parts]
        build_many([kernel_request(problem, config) for problem, config in some])
        made = [repeat(problem, config) for problem, config in some]
        torch.cuda.synchronize()
        yield made


def play_parts(parts: Iterable[Sequence[G]], graphs: list[G], wanted: int, *, limit_s: float) -> Played:
    """Replay each graph once, part after part, then all as `play` does; but end at the first part that is wrong.

    Args:
        parts: of the graphs. The next one is asked for when the one before has been replayed.
        graphs: those that there are by then are put here, and stay alive until whoever asked lets go.
        wanted: launches behind those.
        limit_s: for all of these.
    """
    for part in parts:
        graphs.extend(part)
        played = play(part, 1, limit_s=limit_s)
        if played.hangs or played.wrong.launches:
            return played
    return play(graphs, wanted, limit_s=limit_s)


def check_played(played: Played, wanted: int, seed: int, hang: Callable[[str], object]) -> None:
    """Nothing was wrong.

    Args:
        played: what came of it.
        wanted: launches.
        seed: of the operands.
        hang: called with a message if a graph does not end; it raises.

    Raises:
        AssertionError: an element was wrong.
        TimeoutError: it took too long: another kind of error.
    """
    if played.hangs:
        hang(f"{played.worst} does not end; {played.launches} launches, seed {seed}")
    if played.wrong.launches:
        raise AssertionError(f"{played.wrong} of {played.worst}, of {played.launches} launches, seed {seed}")
    if not played.enough:
        raise TimeoutError(f"{played.launches} of {wanted} launches took {played.seconds:.0f} s")
