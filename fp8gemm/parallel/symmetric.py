"""Memory that every rank of a group can reach: torch's symmetric memory, by copies between peers, without multicast.

Two rules keep ranks that are faster or slower than others from harm. Whoever uses a `Memory` keeps them in each call,
so that calls may follow each other in any order, from any layers, also as nodes of CUDA graphs:

1. A rank touches what is another's, to read or to write, only behind a barrier of the same call. The other has come to
   that barrier too, so it is done with what it did with its own memory before, and has written what is to be read.
2. When a call is done, in the order of this rank's stream, no other rank touches this rank's memory any more: its last
   barrier is behind the last access to another's. The next call may write it at once.

A barrier is a place in the stream's order, nothing for which the host waits.
"""

from __future__ import annotations

import math
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fp8gemm.driver.current import current_device, current_is_captured, current_stream, on_device
from fp8gemm.products.calls import Recent

LEAST_BYTES = 4 << 20
"""Of a workspace; what decode sums fits in one."""
ONE_SHOT_BYTES = 256 << 10
"""Up to which each rank sums all of a tensor, and not a part for each: 16 rows of 8192 in 8.8 us, by parts in 9.3; 32
in 10.0 and 9.7 (two H200s, 2026-11-27)."""
_VIEWS = 256
_TIMEOUT_MS = 600_000
"""After which a rank that waits for another at a `Memory.barrier` gives up: what torch.distributed has for NCCL. The
kernels of `Memory.summed` never do."""


class Lane:
    """A second order of launches, behind what was launched before it was made. On CPUs there is one order alone."""

    def on(self) -> AbstractContextManager[object]:
        """What is launched in it goes there: beside what is launched outside, and behind what went there before."""
        return nullcontext()

    def join(self) -> None:
        """What follows comes behind all that went there."""


class _Stream(Lane):
    def __init__(self, stream: torch.cuda.Stream, device: torch.device) -> None:
        self._stream, self._device = stream, device
        stream.wait_stream(torch.cuda.current_stream(device))

    def on(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class Memory(ABC):
    """As many bytes of each rank of a group.

    Attributes:
        rank, ranks: of this process in the group, and how many there are.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._views: Recent[Tensor] = Recent(_VIEWS)

    @abstractmethod
    def part(self, rank: int, start: int, size: int) -> Tensor:
        """So many bytes, uint8, of what is ``rank``'s."""

    @abstractmethod
    def barrier(self) -> None:
        """What follows, on the lane where it is called, comes behind all that any rank had done there before, and sees
        what that wrote."""

    @abstractmethod
    def copied(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        """Copy, behind what was launched so far, beside what is launched next; no SM is needed for it.

        Args:
            to, source: contiguous, of one shape and dtype, both kept by the caller until it has waited.

        Returns:
            What is called so that what follows, on the lane where it is called, comes behind the copy. Copies come in
            order: behind one are those before it.
        """

    def lane(self) -> Lane:
        """A new one. Before the call ends, in the order of its stream, it is joined."""
        return Lane()

    @abstractmethod
    def summed(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, a new tensor with the same bits on each rank; keeps both rules by itself.

        Args:
            x: bfloat16 or float32, contiguous, a multiple of 16 bytes that begins where this rank's memory does.
        """

    @abstractmethod
    def enter(self) -> None:
        """Begin a call: one at a time, behind those before it. By whoever asked for the memory."""

    def at(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, start: int = 0) -> Tensor:
        """A contiguous tensor of ``rank``'s memory, ``start`` bytes from where that begins."""
        place = rank, shape, dtype, start
        found = self._views.get(place)
        if found is None:
            with torch.inference_mode(False):  # what is viewed in inference mode could not be written in another
                found = self.part(rank, start, math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            self._views.keep(place, found)
        return found


class _CudaMemory(Memory):
    """Of GPUs of one host that reach each other. All ranks make it at once."""

    def __init__(self, group: ProcessGroup, device: torch.device, size: int) -> None:
        from torch.distributed import _symmetric_memory as symmetric  # here, because torch may have none

        super().__init__(group.rank(), group.size())
        self._device, self._name = device, group.group_name
        own = symmetric.empty(size, dtype=torch.uint8, device=device)
        # NOTE: what clears the memory, and so the signals of barriers, is only queued by torch 2.11. Another rank that
        # was ready earlier would signal before that, and its signal would be lost.
        torch.cuda.synchronize(device)
        self._handle = symmetric.rendezvous(own, self._name)
        # NOTE: its own part is the tensor itself, by whose storage torch's operators know it.
        self._parts = [
            own if rank == self.rank else self._handle.get_buffer(rank, (size,), torch.uint8)
            for rank in range(self.ranks)
        ]
        self._side, self._lane = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._last = torch.cuda.current_stream(device)

    def part(self, rank: int, start: int, size: int) -> Tensor:
        return self._parts[rank][start : start + size]

    def barrier(self) -> None:
        self._handle.barrier(channel=0, timeout_ms=_TIMEOUT_MS)

    def copied(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            to.copy_(source)
        done = self._side.record_event()
        return lambda: torch.cuda.current_stream(self._device).wait_event(done)

    def lane(self) -> Lane:
        return _Stream(self._lane, self._device)

    def summed(self, x: Tensor) -> Tensor:
        # NOTE: both kernels begin and end with barriers of their own, the latter behind the last access to what is
        # another's. They add in the order of ranks, on each rank.
        ops = torch.ops.symm_mem
        with on_device(self._device.index):  # to whose stream these operators go, wherever x is
            if x.nbytes <= ONE_SHOT_BYTES or self.ranks not in (2, 4, 8):  # numbers of ranks that the other is made for
                out = torch.empty_like(x)
                ops.one_shot_all_reduce_out(x, "sum", self._name, out)
                return out
            # In place and copied: an eighth faster than its form that writes elsewhere (H200, 2026-11-27).
            ops.two_shot_all_reduce_(x, "sum", self._name)
            return x.clone()

    def enter(self) -> None:
        """A call on another stream than the one before comes behind that.

        NOTE: not while a graph is captured, which nothing outside can be waited for in, and which is not to be waited
        for: who replays graphs does so in the order of other calls, as for collectives of one group.
        """
        if current_stream(self._device.index) != self._last.cuda_stream and not is_capturing(self._device.index):
            before, self._last = self._last, torch.cuda.current_stream(self._device)
            self._last.wait_stream(before)


_lock = threading.Lock()
_refusals: WeakKeyDictionary[ProcessGroup, str] = WeakKeyDictionary()
"""Why not, by group; "" where ranks reach each other."""
_memories: WeakKeyDictionary[ProcessGroup, dict[tuple[torch.device, int], Memory | str]] = WeakKeyDictionary()
"""By group, and device and size; in words where there was none to be had. They are kept: captured graphs have their
addresses."""


def memory_of(group: ProcessGroup, device: torch.device, size: int) -> Memory | str:
    """A workspace of the group, of at least so many bytes; in words why there is none, which all ranks get alike.

    All layers share it. It is as large as the next power of two, and stays when a larger one is made, so that together
    they take less than four times what the largest call needs. Its first call for a size is a collective.
    """
    wanted = max(LEAST_BYTES, 1 << (size - 1).bit_length())
    place = device, wanted
    found = _memories.get(group, {}).get(place)
    if isinstance(found, Memory):
        return found
    if why := found or refusal(group, device):
        return why
    with _lock:
        of_group = _memories.setdefault(group, {})
        if place not in of_group:
            if is_capturing(device.index):
                return "no call of its size was made before a CUDA graph was captured"
            of_group[place] = _tried(group, device, wanted)
        return of_group[place]


def refusal(group: ProcessGroup, device: torch.device) -> str:
    """Why ranks of a group cannot reach each other's memory, "" if they can. The first call is a collective."""
    if device.type != "cuda" or not torch.cuda.is_available():  # not remembered: others may be on GPUs
        return f"its ranks are on {device.type}, and symmetric memory is one of GPUs"
    found = _refusals.get(group)
    if found is not None:
        return found
    if is_capturing(device.index):
        return "no call was made before a CUDA graph was captured"
    found = found_out(group, device)
    with _lock:
        _refusals[group] = found
    return found


def opened(group: ProcessGroup, device: torch.device, size: int) -> Memory:
    """New memory of the group; all ranks call at once."""
    return _CudaMemory(group, device, size)


def is_capturing(index: int | None) -> bool:
    """Whether a CUDA graph is being captured on a GPU's current stream; -1 or None for none."""
    if index is None or index < 0:
        return False
    if current_device() == index:
        return bool(current_is_captured())
    with on_device(index):
        return bool(current_is_captured())


def found_out(group: ProcessGroup, device: torch.device) -> str:
    """`refusal`, by asking all ranks and by trying: the same answer on each, so that none waits for others alone."""
    with torch.cuda.device(device):
        here = socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid)
        if said := _first_of(group, _unreachable(_told(group, here), here, device)):
            return said
    tried = _tried(group, device, LEAST_BYTES)
    if isinstance(tried, str):
        return tried
    with _lock:
        _memories.setdefault(group, {})[device, LEAST_BYTES] = tried
    return ""


def _tried(group: ProcessGroup, device: torch.device, size: int) -> Memory | str:
    """New memory, or what failed on any rank: by what it has left, each could fail by itself."""
    failed = ""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        try:
            with torch.inference_mode(False):  # for calls of any mode, as views are
                memory = opened(group, device, size)
        except (RuntimeError, ImportError, AttributeError) as error:
            failed = f"torch's symmetric memory failed: {(str(error) or repr(error)).splitlines()[0]}"
        return _first_of(group, failed) or memory


def _unreachable(all_ranks: list[tuple[str, str]], here: tuple[str, str], device: torch.device) -> str:
    """Which rank this one does not reach, in words; each is known by its host and its GPU."""
    seen = {str(torch.cuda.get_device_properties(index).uuid): index for index in range(torch.cuda.device_count())}
    for rank, (host, gpu) in enumerate(all_ranks):
        if host != here[0]:
            return f"rank {rank} is on {host}, another on {here[0]}"
        if all_ranks.count((host, gpu)) > 1:
            return f"rank {rank} shares its GPU with another"
        if gpu not in seen:
            return f"the GPU of rank {rank} is hidden from other ranks, by CUDA_VISIBLE_DEVICES say"
        if seen[gpu] != device.index and not torch.cuda.can_device_access_peer(device, seen[gpu]):
            return f"the GPU of rank {rank} is no peer of another's"
    return ""


def _told(group: ProcessGroup, mine: tuple[str, str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = [("", "")] * group.size()
    dist.all_gather_object(found, mine, group=group)
    return found


def _first_of(group: ProcessGroup, mine: str) -> str:
    """What the first rank says that says anything."""
    return next((said for said, _ in _told(group, (mine, "")) if said), "")
