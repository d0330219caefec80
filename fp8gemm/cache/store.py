"""Compiled kernels on disk: layers of directories, verified when read, published in one step, healed when damaged.

A fault of the file system is never an error of the caller: it makes a kernel a miss, or keeps it in memory alone, and
gives one warning. Only the first reading of a kernel touches the disk, and a hit writes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fp8gemm.cache.entry import SIZE_LIMITS, DamagedError, Entry, IncompleteError, directory_name, pack, unpack
from fp8gemm.cache.files import (
    FILE_MODE,
    LOCK_SUFFIX,
    make_directories,
    publish_directory,
    remove_matching,
    require_locks,
    retrying,
    set_aside,
    temporary_prefix,
)
from fp8gemm.cache.notices import CacheEvent, Notices
from fp8gemm.cache.trust import UnsafeError, is_sealed, opened_directory, read_regular_file
from fp8gemm.frozen import dataclass
from fp8gemm.settings import Settings

LOCK_TIMEOUT_S = 30.0
"""How long to wait for another process that compiles the same kernel: many times what a compile takes."""

LOCKS = ".locks"
"""Directory of a layer that holds one lock file, ``<entry>.lock``, for each kernel that was compiled into it."""

_LOCK_POLL_S = 0.01


@dataclass(frozen=True)
class Layer:
    """One cache directory, which need not exist.

    Attributes:
        path: absolute.
        trusted: whether the user vouches for whoever can write to it.
    """

    path: Path
    trusted: bool = False

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the directory; OSError or UnsafeError if it cannot be or must not be used."""
        with opened_directory(self.path, trusted=self.trusted) as descriptor:
            yield descriptor

    def changed_ns(self) -> int | None:
        """When an entry last came or went; None if that cannot be told."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return None

    def read(self, label: str, key: str) -> Entry:
        """The entry of this key, verified.

        Raises:
            FileNotFoundError: there is none.
            DamagedError: there is one that must not be used.
            UnsafeError: the layer must not be used.
            OSError: the file system failed.
        """
        name = directory_name(label, key)
        return unpack(self.read_files(name), label=label, key=key, directory=self.path / name)

    def read_files(self, name: str) -> dict[str, bytes]:
        """The files of an entry, by the name of its directory, not yet verified; raises as ``read`` does."""
        with self.opened() as layer, ExitStack() as stack:
            try:
                entry = stack.enter_context(opened_directory(name, inside=layer, trusted=self.trusted))
                files = {}
                for file, limit in SIZE_LIMITS.items():
                    try:
                        files[file] = read_regular_file(file, inside=entry, limit=limit, trusted=self.trusted)
                    except FileNotFoundError as error:
                        raise IncompleteError(f"{file} is missing") from error
            except UnsafeError as error:
                raise DamagedError(str(error)) from error
        return files


@dataclass(frozen=True)
class Damage:
    """An entry that was found and not used.

    Attributes:
        layer: where it lies.
        reason: what is wrong with it.
    """

    layer: Layer
    reason: str


@dataclass(frozen=True)
class Found:
    """What a search found: the entry, if any, and what was passed over on the way to it."""

    entry: Entry | None
    damaged: tuple[Damage, ...] = ()


class Store:
    """The layers of one cache.

    Args:
        directories: absolute paths in reading order. The last one that can be written receives new kernels.
        trusted: those to use although others own them or can write to them.
        lock_timeout_s: seconds to wait for another process that holds a kernel's lock.
    """

    def __init__(
        self, directories: Sequence[Path], *, trusted: Sequence[Path] = (), lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        vouched = {form for path in trusted for form in (str(path), os.path.realpath(path))}
        self.layers = tuple(
            Layer(path, trusted=not vouched.isdisjoint((str(path), os.path.realpath(path)))) for path in directories
        )
        self.notices = Notices()
        self._lock_timeout_s = lock_timeout_s
        self._rejected: dict[tuple[str, str], str] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> Store:
        """The store that the settings describe."""
        return cls(settings.cache_dirs, trusted=settings.trusted_dirs)

    def find(self, label: str, key: str) -> Found:
        """The verified entry of a key from the first layer that has it, and the damaged ones met on the way."""
        damaged: list[Damage] = []
        for layer in self.layers:
            try:
                entry = retrying(layer.read, label, key)
            except FileNotFoundError:
                continue
            except DamagedError as error:
                damaged.append(Damage(layer, str(error)))
            except UnsafeError as error:
                self._refuse(layer, error)
            except OSError as error:
                self.notices.give(CacheEvent.UNREADABLE, layer.path, str(error))
            else:
                rejected = self._rejected.get((key, _digest(entry.cubin))) if self._rejected else None
                if rejected is None:
                    return Found(entry, tuple(damaged))
                damaged.append(Damage(layer, rejected))
        return Found(None, tuple(damaged))

    def publish(self, entry: Entry, source: str, *, replace: bool = False) -> Path | None:
        """Write an entry so that other processes see all of it or nothing.

        Args:
            entry: what to write.
            source: its kernel's source.
            replace: put it in the place of the one that is there.

        Returns:
            The directory that holds it: ours, or that of a process which was faster. None if it could not be written,
            which has then been said once.
        """
        layer = self.writable_layer()
        if layer is None:
            return None
        name = directory_name(entry.label, entry.key)
        try:
            retrying(self._publish_into, layer, name, pack(entry, source), replace)
        except (OSError, UnsafeError) as error:
            self.notices.give(CacheEvent.MEMORY_ONLY, layer.path, str(error))
            return None
        return layer.path / name

    def quarantine(self, label: str, key: str, damage: Damage) -> None:
        """Move a damaged entry out of the way, where its layer can be written, and say once what was wrong with it."""
        name = directory_name(label, key)
        outcome = "left in place, the layer cannot be written"
        try:
            with damage.layer.opened() as layer:
                if not is_sealed(layer):
                    moved = retrying(set_aside, name, inside=layer)
                    outcome = "removed" if moved is None else f"moved to {moved}"
        except (OSError, UnsafeError) as error:
            outcome = f"left in place: {error}"
        self.notices.give(CacheEvent.HEALED, damage.layer.path / name, f"{damage.reason}; {outcome}; compiled again")

    def reject(self, key: str, cubin: bytes, reason: str) -> None:
        """Take these bytes for damaged from now on, in this process: they verify, and yet cannot be used."""
        self._rejected[key, _digest(cubin)] = reason

    @contextmanager
    def lock(self, label: str, key: str) -> Iterator[bool]:
        """Hold the lock that makes processes compile a kernel one at a time; the value says whether it is held.

        It is not where nothing can be written, where the file system has no locks, or when its holder does not let go
        in time: to compile a kernel twice is better than to wait for ever.
        """
        with ExitStack() as stack:
            yield self._acquire(stack, directory_name(label, key))

    def ages(self) -> tuple[int | None, ...]:
        """When entries of each layer last came or went, by its file system's clock; None where that cannot be told."""
        return tuple(layer.changed_ns() for layer in self.layers)

    def describe(self) -> str:
        """The layers as a setting would list them."""
        return os.pathsep.join(str(layer.path) for layer in self.layers) or "none"

    def _acquire(self, stack: ExitStack, name: str) -> bool:
        layer = self.writable_layer()
        if layer is None:
            return False
        # Imported here because a hit needs no lock, and the import costs more than the whole hit.
        from filelock import FileLock, Timeout

        try:
            with layer.opened() as descriptor:
                make_directories(layer.path / LOCKS)
                # Not through a symlink: files would be made and removed where it leads.
                with opened_directory(LOCKS, inside=descriptor, trusted=layer.trusted) as locks:
                    lock = FileLock(layer.path / LOCKS / f"{name}{LOCK_SUFFIX}", mode=FILE_MODE)
                    try:
                        lock.acquire(timeout=0)
                    except Timeout:
                        require_locks(inside=locks)
                        lock.acquire(timeout=self._lock_timeout_s, poll_interval=_LOCK_POLL_S)
                stack.callback(lock.release)
                # Whoever wrote under this lock and did not finish is dead: its traces are nobody's.
                remove_matching(temporary_prefix(name), inside=descriptor)
        except Timeout:
            self.notices.give(CacheEvent.UNLOCKED, layer.path, f"{name} is locked for {self._lock_timeout_s} s")
            return False
        except (OSError, NotImplementedError) as error:
            self.notices.give(CacheEvent.UNLOCKED, layer.path, f"a lock cannot be had: {error}")
            return False
        except UnsafeError as error:
            self.notices.give(CacheEvent.UNLOCKED, layer.path, f"{LOCKS} is not used: {error}")
            return False
        return True

    def writable_layer(self) -> Layer | None:
        """The last layer that can be written: sealed ones come first, as in ``/sealed:/writable``."""
        for layer in reversed(self.layers):
            try:
                if layer is self.layers[-1]:  # any other that is missing is an image that has not been mounted
                    make_directories(layer.path)
                with layer.opened() as descriptor:
                    if not is_sealed(descriptor):
                        return layer
            except UnsafeError as error:
                self._refuse(layer, error)
            except OSError:
                continue
        if not self.layers or not all(self.notices.given_about(layer.path) for layer in self.layers):
            expected = "expected a directory that can be written in FP8GEMM_CACHE_DIR"
            self.notices.give(CacheEvent.MEMORY_ONLY, None, f"{expected}; found {self.describe()}")
        return None

    def _refuse(self, layer: Layer, error: UnsafeError) -> None:
        advice = f"correct it, or list {layer.path} in FP8GEMM_TRUSTED_DIRS"
        self.notices.give(CacheEvent.REFUSED, layer.path, f"{error}; {advice}")

    @staticmethod
    def _publish_into(layer: Layer, name: str, files: dict[str, bytes], replace: bool) -> None:
        with layer.opened() as descriptor:
            publish_directory(name, files, inside=descriptor, replace=replace)


def _digest(cubin: bytes) -> str:
    return hashlib.sha256(cubin).hexdigest()
