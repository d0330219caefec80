"""What the cache tells its user: nothing while it works, one structured warning when it had to work around a fault."""

from __future__ import annotations

import warnings
from enum import Enum
from pathlib import Path


class CacheEvent(Enum):
    """What happened. The kernel was served, or will be compiled, in spite of each."""

    HEALED = "healed"  #: a damaged entry was not used; its kernel was compiled again
    REFUSED = "refused"  #: a directory is not safe to load code from
    UNREADABLE = "unreadable"  #: the file system failed while reading
    MEMORY_ONLY = "memory-only"  #: nothing could be written; compiled kernels last as long as the process
    UNLOCKED = "unlocked"  #: the per-kernel lock was not to be had; another process may compile the same kernel


class CacheWarning(RuntimeWarning):
    """A fault of the kernel cache that did not stop the call.

    Attributes:
        event: what happened.
        place: the directory concerned, None if there is none.
        reason: why, in words.
    """

    def __init__(self, event: CacheEvent, place: Path | None, reason: str) -> None:
        where = f" {place}" if place is not None else ""
        super().__init__(f"fp8gemm kernel cache{where}: {event.value}: {reason}")
        self.event = event
        self.place = place
        self.reason = reason


class Notices:
    """Gives each notice once: a faulty directory is met again with every kernel, and one line about it is enough."""

    def __init__(self) -> None:
        self._given: set[tuple[CacheEvent, Path | None]] = set()

    def give(self, event: CacheEvent, place: Path | None, reason: str) -> None:
        """Warn about a place, unless this has been done for the same event there."""
        if (event, place) not in self._given:
            self._given.add((event, place))
            warnings.warn(CacheWarning(event, place, reason), stacklevel=2)

    def given_about(self, place: Path) -> bool:
        """Whether any notice about this place has been given."""
        return any(place == known for _, known in self._given)
