"""Symmetric memory without GPUs: torch's part is played, so that what is asked of it, and in which order, shows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, _symmetric_memory

from fp8gemm.parallel import symmetric
from fp8gemm.parallel.symmetric import LEAST_BYTES

DEVICE = torch.device("cuda", 1)
GPUS = {"GPU-a": 0, "GPU-b": 1}


class Stream:
    """Notes what is asked of it; the number of a stream is its handle."""

    numbers = iter(range(1, 1000))

    def __init__(self, played: Played) -> None:
        self._played, self.cuda_stream = played, next(self.numbers)

    def wait_stream(self, other: Stream) -> None:
        self._played.did.append(("wait", self, other))

    def record_event(self) -> object:
        self._played.did.append(("record", self))
        return "event"

    def wait_event(self, event: object) -> None:
        self._played.did.append(("wait event", self, event))


class Handle:
    """What a rendezvous gives: memory of two ranks, of which this is the second."""

    def __init__(self, played: Played, own: torch.Tensor) -> None:
        self._played, self._other = played, torch.zeros_like(own)

    def get_buffer(self, rank: int, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        assert rank == 0 and sizes == tuple(self._other.shape) and dtype == torch.uint8
        return self._other

    def barrier(self, channel: int, timeout_ms: int) -> None:
        self._played.did.append(("barrier", channel, timeout_ms > 0))


class Played:
    """Attributes: what was done; the current stream; whether a graph is captured; what each rank says, by question."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.current, self.capturing, self.fails = Stream(self), False, ""
        self.others: list[tuple[str, str]] = [("host", "GPU-a"), ("", "")]
        self.peers = True
        self.on: int | None = None
        cuda = {
            "is_available": lambda: True,
            "device": lambda device: contextlib.nullcontext(),
            "device_count": lambda: len(GPUS),
            "get_device_properties": lambda index: SimpleNamespace(uuid=list(GPUS)[self._index(index)]),
            "can_device_access_peer": lambda one, other: self.peers,
            "current_stream": lambda device: self.current,
            "Stream": lambda device: Stream(self),
            "stream": self._stream,
            "synchronize": lambda device: self.did.append(("wait for all", device)),
        }
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(symmetric, "current_stream", lambda index: self.current.cuda_stream)
        patch.setattr(symmetric, "on_device", self._on_device)
        patch.setattr(symmetric, "current_device", lambda: 0)
        patch.setattr(symmetric, "current_is_captured", self._is_captured)
        patch.setattr(symmetric.socket, "gethostname", lambda: "host")
        patch.setattr(symmetric.dist, "all_gather_object", self._told)
        patch.setattr(_symmetric_memory, "empty", self._empty)
        patch.setattr(_symmetric_memory, "rendezvous", self._rendezvous)

    @staticmethod
    def _index(device: Any) -> int:
        # As the second rank, whose own GPU is the second.
        return device if isinstance(device, int) else 1

    def _empty(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self.fails:
            raise RuntimeError(self.fails)
        self.did.append(("empty", size))
        return torch.zeros(size, dtype=dtype)

    @contextlib.contextmanager
    def _on_device(self, index: int) -> Iterator[None]:
        self.on = index
        yield
        self.on = None

    def _is_captured(self) -> bool:
        assert self.on == DEVICE.index, "of another GPU's stream"
        return self.capturing

    def _rendezvous(self, own: torch.Tensor, name: str) -> Handle:
        self.did.append(("rendezvous", name))
        return Handle(self, own)

    def _told(self, found: list[Any], mine: Any, group: ProcessGroup) -> None:
        self.did.append(("told", mine))
        found[:] = [self.others.pop(0) if self.others else ("", ""), mine]

    @contextlib.contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        self.did.append(("on", stream))
        yield
        self.did.append(("off", stream))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


@pytest.fixture
def group() -> Iterator[Any]:
    """Two ranks as far as anybody asks; it can be a weak key."""

    class Group:
        group_name = "tp"

        def rank(self) -> int:
            return 1

        def size(self) -> int:
            return 2

    yield Group()


def test_what_is_found_out_once_is_known(played: Played, group: Any) -> None:
    memory = symmetric.memory_of(group, DEVICE, 100)
    assert isinstance(memory, symmetric.Memory) and (memory.rank, memory.ranks) == (1, 2)
    # Nobody meets before the signals of barriers are cleared.
    made = [("empty", LEAST_BYTES), ("wait for all", DEVICE), ("rendezvous", "tp")]
    assert played.did == [("told", ("host", "GPU-b")), ("told", ("", "")), *made, ("told", ("", ""))]
    assert symmetric.memory_of(group, DEVICE, LEAST_BYTES) is memory and len(played.did) == 6
    larger = symmetric.memory_of(group, DEVICE, LEAST_BYTES + 1)
    assert larger is not memory and played.did[6:] == [
        ("empty", 2 * LEAST_BYTES),
        *made[1:],
        ("told", ("", "")),
    ]


@pytest.mark.parametrize(
    ("others", "changes", "why"),
    [
        ([("elsewhere", "GPU-a")], {}, "rank 0 is on elsewhere, another on host"),
        ([("host", "GPU-b")], {}, "rank 0 shares its GPU"),
        ([("host", "GPU-c")], {}, "GPU of rank 0 is hidden"),
        ([("host", "GPU-a")], {"peers": False}, "GPU of rank 0 is no peer"),
        ([("host", "GPU-a"), ("what the other says", "")], {}, "what the other says"),
        ([("host", "GPU-a")], {"fails": "pidfd_getfd: no\nmore"}, "symmetric memory failed: pidfd_getfd: no$"),
        ([("host", "GPU-a"), ("", ""), ("it failed there", "")], {}, "it failed there"),
    ],
)
def test_ranks_that_do_not_reach_each_other(
    others: list[tuple[str, str]], changes: dict[str, Any], why: str, played: Played, group: Any
) -> None:
    played.others = others
    for name, value in changes.items():
        setattr(played, name, value)
    said = symmetric.memory_of(group, DEVICE, 100)
    assert isinstance(said, str) and re.search(why, said) and said == symmetric.refusal(group, DEVICE)
    asked = len(played.did)
    assert symmetric.memory_of(group, DEVICE, 100) == said and len(played.did) == asked


@pytest.mark.parametrize(("here", "there"), [("out of memory", ""), ("", "out of memory")])
def test_a_workspace_that_one_rank_cannot_have_none_has(here: str, there: str, played: Played, group: Any) -> None:
    least = symmetric.memory_of(group, DEVICE, 100)
    played.fails, played.others = here, [(there, "")]
    said = symmetric.memory_of(group, DEVICE, LEAST_BYTES + 1)
    assert isinstance(said, str) and "out of memory" in said
    played.fails, asked = "", len(played.did)
    assert symmetric.memory_of(group, DEVICE, LEAST_BYTES + 1) == said and len(played.did) == asked
    assert symmetric.memory_of(group, DEVICE, 100) is least and symmetric.refusal(group, DEVICE) == ""


def test_tensors_on_no_gpu_say_nothing_of_those_that_are(played: Played, group: Any) -> None:
    assert "on cpu" in symmetric.refusal(group, torch.device("cpu")) and played.did == []
    assert "on cpu" in str(symmetric.memory_of(group, torch.device("cpu"), 100))
    assert isinstance(symmetric.memory_of(group, DEVICE, 100), symmetric.Memory)


def test_nothing_is_asked_or_made_while_a_graph_is_captured(played: Played, group: Any) -> None:
    played.capturing = True
    assert isinstance(symmetric.memory_of(group, DEVICE, 100), str) and played.did == []
    assert "before a CUDA graph" in symmetric.refusal(group, DEVICE)
    played.capturing = False
    memory = symmetric.memory_of(group, DEVICE, 100)
    played.capturing, done = True, len(played.did)
    assert symmetric.memory_of(group, DEVICE, 100) is memory
    assert "before a CUDA graph" in str(symmetric.memory_of(group, DEVICE, 2 * LEAST_BYTES)) and len(played.did) == done


def test_copies_are_behind_what_was_launched_and_beside_what_follows(played: Played, group: Any) -> None:
    memory: Any = symmetric.memory_of(group, DEVICE, 100)
    played.did.clear()
    to, source = memory.at(0, (2, 3), torch.float32, 16), torch.randn(2, 3)
    wait = memory.copied(to, source)
    side, main = memory._side, played.current
    assert played.did == [("wait", side, main), ("on", side), ("off", side), ("record", side)]
    assert torch.equal(memory.part(0, 16, 24).view(torch.float32), source.flatten())
    wait()
    memory.barrier()
    assert played.did[4:] == [("wait event", main, "event"), ("barrier", 0, True)]


def test_calls_on_another_stream_come_behind_those_before(played: Played, group: Any) -> None:
    symmetric.memory_of(group, DEVICE, 100)
    first, second, captured = played.current, Stream(played), Stream(played)
    played.did.clear()
    for stream, capturing, waits in (
        (first, False, []),
        (second, False, [("wait", second, first)]),
        (second, False, []),
        (captured, True, []),
        (first, False, [("wait", first, second)]),  # which a graph that was captured in between does not hide
    ):
        played.current, played.capturing = stream, capturing
        memory = symmetric.memory_of(group, DEVICE, 100)
        assert isinstance(memory, symmetric.Memory) and played.did == []
        memory.enter()
        assert played.did == waits
        played.did.clear()


@pytest.mark.parametrize(
    ("rows", "ranks", "kernel"),
    [(1, 2, "one_shot"), (4096, 2, "two_shot"), (4096, 3, "one_shot"), (4096, 8, "two_shot")],
)
def test_sums_are_new_tensors_of_the_kernel_for_their_size(
    rows: int, ranks: int, kernel: str, played: Played, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: Any = symmetric.memory_of(group, DEVICE, 100)
    memory.ranks, asked = ranks, []
    x = memory.at(1, (rows, 64), torch.bfloat16)

    def one_shot(x: torch.Tensor, kind: str, group_name: str, out: torch.Tensor) -> None:
        assert played.on == DEVICE.index
        asked.append(("one_shot", x, kind, group_name))
        out.fill_(2)

    def two_shot(x: torch.Tensor, kind: str, group_name: str) -> None:
        assert played.on == DEVICE.index
        asked.append(("two_shot", x, kind, group_name))
        x.fill_(2)

    ops = SimpleNamespace(one_shot_all_reduce_out=one_shot, two_shot_all_reduce_=two_shot)
    monkeypatch.setattr(
        symmetric, "torch", SimpleNamespace(ops=SimpleNamespace(symm_mem=ops), empty_like=torch.empty_like)
    )
    out = memory.summed(x)
    assert [name for name, *_ in asked] == [kernel]
    assert asked[0][1] is x and x.storage_offset() == 0 and asked[0][2:] == ("sum", "tp")
    assert out.shape == x.shape and bool((out == 2).all())
    assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_torch_has_what_is_asked_of_it() -> None:
    """The operators' arguments, in this torch."""
    if not dist.is_available() or not hasattr(torch.ops.symm_mem, "two_shot_all_reduce_"):
        pytest.skip("this torch has no symmetric memory")
    in_place = ["Tensor", "str", "str"]
    for name, types in (("one_shot_all_reduce_out", [*in_place, "Tensor"]), ("two_shot_all_reduce_", in_place)):
        schema = getattr(torch.ops.symm_mem, name).default._schema
        assert [str(argument.type) for argument in schema.arguments] == types
    handle = _symmetric_memory._SymmetricMemory
    assert all(hasattr(handle, name) for name in ("barrier", "get_buffer"))
