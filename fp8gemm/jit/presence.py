"""What the cache directories hold of a set of kernels, verified: what a warmup may call ready.

Nothing in memory counts, nothing is compiled and nothing is written, not even a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fp8gemm.errors import CacheError
from fp8gemm.jit.build import current_store
from fp8gemm.jit.job import Job
from fp8gemm.jit.request import KernelRequest

ABSENT = "not there"


@dataclass(frozen=True)
class Missing:
    """A kernel that no directory has intact.

    Attributes:
        label: its name for people.
        key: its cache key.
        problem: why it does not count.
    """

    label: str
    key: str
    problem: str


@dataclass(frozen=True)
class Presence:
    """What is there of a set of kernels.

    Attributes:
        sizes: bytes of the cubin of each kernel that is there, by key.
        directories: that hold them, in the order of the settings.
        missing: the others.
    """

    sizes: Mapping[str, int]
    directories: tuple[Path, ...]
    missing: tuple[Missing, ...]


def keys_of(requests: Iterable[KernelRequest]) -> dict[str, KernelRequest]:
    """The requests by cache key, with the device headers of now."""
    return {Job.of(request, None).key: request for request in requests}


def look(wanted: Mapping[str, KernelRequest]) -> Presence:
    """Look for kernels, by their keys, in the directories of the current settings as a loader does, and verify each."""
    store = current_store()
    sizes: dict[str, int] = {}
    directories: set[Path] = set()
    missing = []
    for key, request in wanted.items():
        found = store.find(request.label, key)
        if found.entry is None or found.entry.directory is None:
            problem = "; ".join(f"{damage.layer.path}: {damage.reason}" for damage in found.damaged)
            missing.append(Missing(request.label, key, problem or ABSENT))
        else:
            sizes[key] = len(found.entry.cubin)
            directories.add(found.entry.directory.parent)
    used = tuple(layer.path for layer in store.layers if layer.path in directories)
    return Presence(sizes, used, tuple(missing))


def require_writable_directory() -> None:
    """Refuse to make kernels that would last as long as this process.

    Raises:
        CacheError: no directory of the current settings can be written.
    """
    store = current_store()
    if store.writable_layer() is None:
        raise CacheError(
            f"expected a cache directory that can be written (FP8GEMM_CACHE_DIR); found {store.describe()}"
        )
