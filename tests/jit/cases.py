"""What the tests of the JIT share: an entry, ways to look at a cache directory, and the types of fixtures."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fp8gemm.cache.entry import Entry
from fp8gemm.cache.notices import CacheEvent, CacheWarning
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.request import KernelRequest
from fp8gemm.tuning.config import TileConfig

T = TypeVar("T")
Forget = Callable[[], None]
Python = Callable[..., "subprocess.Popen[str]"]
Quick = Callable[[], Artifact]
RequestFor = Callable[[int], KernelRequest]

LABEL, KEY, OTHER_KEY = "tiny-7", "ab" * 32, "cd" * 32
NAME = f"{LABEL}.{KEY}"
ENTRY = Entry(KEY, LABEL, b"\x7fELF" + bytes(range(256)) * 8, {"nvrtc_version": "12.9", "options": ["--x=é"]})
TEXT = "// tiny-7\n"


def wrong_registers(found: int, config: TileConfig) -> list[str]:
    """What is wrong with a thread's registers at launch. With two consumer warpgroups it has its share of the SM: with
    fewer, setmaxnreg would have less to distribute. With one it keeps what it has."""
    threads = 32 * 4 * (1 + config.warpgroups)
    share = 65536 // threads // 8 * 8
    if config.warpgroups == 1 and found <= min(share, 255) or found == share:
        return []
    return [f"{found} registers at launch of {config.warpgroups} consumer warpgroups, of {share}"]


@contextmanager
def warned(*events: CacheEvent) -> Iterator[list[CacheWarning]]:
    """Expect exactly these warnings."""
    found: list[CacheWarning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [each.message for each in caught if isinstance(each.message, CacheWarning)]
    assert [each.event for each in found] == list(events), [str(each.message) for each in caught]


def told(work: Callable[[], T]) -> tuple[T, list[CacheEvent]]:
    """What a function returns, and the events that it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = work()
    return value, [each.message.event for each in caught if isinstance(each.message, CacheWarning)]


def snapshot(place: Path) -> dict[str, tuple[int, int, int]]:
    """Every path with its mode, size and time of change."""
    found = {}
    for path in [place, *place.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_ctime_ns)
    return found


def seal(place: Path) -> None:
    for path in [*place.rglob("*"), place]:
        path.chmod(0o555 if path.is_dir() else 0o444)
