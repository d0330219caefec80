"""What lies in a cache directory: kernels, each verified or with what is wrong with it, leftovers, foreign files.

Looking changes nothing. A directory that a kernel would not be loaded from is refused here too.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fp8gemm.cache.access import State, opened_layer, state_of
from fp8gemm.cache.entry import SIZE_LIMITS, DamagedError, label_and_key, unpack
from fp8gemm.cache.files import LOCK_SUFFIX, retrying
from fp8gemm.cache.manifest import LISTED, MANIFEST, MANIFEST_LIMIT, Manifest, decode_manifest
from fp8gemm.cache.refused import REFUSED, is_refused_source
from fp8gemm.cache.store import LOCKS, Layer
from fp8gemm.cache.trust import UnsafeError, opened_directory, read_regular_file
from fp8gemm.errors import CacheError

Progress = Callable[[], object]
"""Called after each kernel."""

_LEFTOVER = re.compile(r"\.(tmp|quarantine)-(.*)-[0-9a-f]{8}", re.DOTALL)


@dataclass(frozen=True)
class Kernel:
    """One entry of a cache directory.

    Attributes:
        name: of its directory.
        label: its name for people.
        key: its cache key.
        size: bytes of its files.
        age_s: seconds since it was written, by this machine's clock; 0 if that lies ahead.
        problem: why it is not used; empty if it verifies.
        foreign: what in it is not ours, as paths within the layer.
        digests: SHA-256 of the files that a manifest lists; none if it does not verify.
        metadata: its sidecar; empty if it does not verify.
    """

    name: str
    label: str
    key: str
    size: int = 0
    age_s: float = 0.0
    problem: str = ""
    foreign: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def registers(self) -> int | None:
        """Per thread; None if unknown."""
        return self._resource("registers")

    @property
    def spill_bytes(self) -> int | None:
        """Per thread, written because registers ran out; None if unknown."""
        return self._resource("spill_store_bytes")

    @property
    def nvrtc_version(self) -> str | None:
        """Of the NVRTC that compiled it; None if unknown."""
        version = self.metadata.get("nvrtc_version")
        return version if isinstance(version, str) else None

    def _resource(self, name: str) -> int | None:
        resources = self.metadata.get("resources")
        value = resources.get(name) if isinstance(resources, dict) else None
        return value if isinstance(value, int) else None


@dataclass(frozen=True)
class Leftover:
    """What a writer that was killed left, a damaged entry that was moved aside, or a source that did not compile.

    Attributes:
        name: of the directory, or path within the layer of a manifest's temporary file or a source.
        size: bytes of its files.
        age_s: as that of a kernel.
        writer: label and key of the kernel under whose lock somebody may still be writing it; None for what nobody
            writes any more.
        is_file: whether it is a file, that of a manifest or a source.
    """

    name: str
    size: int
    age_s: float
    writer: tuple[str, str] | None
    is_file: bool = False


@dataclass(frozen=True)
class Inventory:
    """All that lies in a cache directory.

    Attributes:
        layer: the directory.
        state: whether it may change.
        kernels: in the order of their names.
        leftovers: of our own.
        foreign: paths within the layer of everything else, what lies among a kernel's files included.
        manifest: if there is one that is intact.
        manifest_problem: what is wrong with the one that is there.
    """

    layer: Layer
    state: State
    kernels: tuple[Kernel, ...]
    leftovers: tuple[Leftover, ...]
    foreign: tuple[str, ...]
    manifest: Manifest | None
    manifest_problem: str

    @property
    def size(self) -> int:
        """Bytes of all kernels and leftovers."""
        items: tuple[Kernel | Leftover, ...] = (*self.kernels, *self.leftovers)
        return sum(item.size for item in items)

    @property
    def damaged(self) -> tuple[Kernel, ...]:
        """The kernels that do not verify."""
        return tuple(kernel for kernel in self.kernels if kernel.problem)


def take_inventory(layer: Layer, *, progress: Progress | None = None) -> Inventory:
    """Look at everything in a cache directory, and verify each kernel.

    Raises:
        CacheError: it is not there, cannot be read, or is not safe to load code from.
    """
    with opened_layer(layer) as root:
        try:
            return _Look(layer, root).everything(progress)
        except OSError as error:
            raise CacheError(f"the cache directory {layer.path} cannot be read: {error}") from error
        except UnsafeError as error:  # it has become unsafe meanwhile
            raise CacheError(f"the cache directory {layer.path} is refused: {error}") from error


def whole_kernels(layer: int) -> list[int]:
    """Bytes of each kernel of an open cache directory whose files are all there. None is read, and so none verified.

    Raises:
        OSError: the directory cannot be read.
    """
    found = (_files(name, layer) for name in os.listdir(layer) if label_and_key(name) is not None)
    return [_size(files) for files in found if files is not None and SIZE_LIMITS.keys() <= files.keys()]


def foreign_files(name: str, *, inside: int) -> tuple[str, ...]:
    """Paths of what in a directory is no file of a kernel; the directory itself if it is none."""
    files = _files(name, inside)
    if files is None:
        return (name,)
    return tuple(f"{name}/{file}" for file, status in sorted(files.items()) if not _is_file_of_kernel(file, status))


def is_lock_file(name: str, status: os.stat_result) -> bool:
    """Whether a file among the locks is one that a store made."""
    entry = name.removesuffix(LOCK_SUFFIX)
    return entry != name and label_and_key(entry) is not None and stat.S_ISREG(status.st_mode)


class _Look:
    """One look at an open cache directory."""

    def __init__(self, layer: Layer, root: int) -> None:
        self.layer, self.root = layer, root

    def everything(self, progress: Progress | None) -> Inventory:
        kernels, leftovers, foreign = list[Kernel](), list[Leftover](), list[str]()
        manifest, problem = None, ""
        state = state_of(self.root)
        for name in sorted(os.listdir(self.root)):
            # What another process removes meanwhile is no longer there, and that is all.
            with suppress(FileNotFoundError):
                if (label_key := label_and_key(name)) is not None:
                    kernels.append(self.kernel(name, *label_key))
                    foreign += kernels[-1].foreign
                    if progress is not None:
                        progress()
                elif name == MANIFEST:
                    manifest, problem = self.manifest()
                    if problem and state is not State.SEALED:
                        foreign.append(name)  # somebody else's file of that name, as far as we can tell
                elif name == LOCKS:
                    foreign += self.foreign_files_of(LOCKS, is_lock_file)
                elif name == REFUSED:
                    leftovers += self.refused_sources()
                    foreign += self.foreign_files_of(REFUSED, is_refused_source)
                elif (leftover := self.leftover(name)) is not None:
                    leftovers.append(leftover)
                else:
                    foreign.append(name)
        return Inventory(self.layer, state, tuple(kernels), tuple(leftovers), tuple(foreign), manifest, problem)

    def kernel(self, name: str, label: str, key: str) -> Kernel:
        files = _files(name, self.root)
        known: dict[str, Any] = {
            "name": name,
            "label": label,
            "key": key,
            "size": _size(files or {}),
            "age_s": self.age_s(name),
            "foreign": foreign_files(name, inside=self.root),
        }
        try:
            contents = retrying(self.layer.read_files, name)
            entry = unpack(contents, label=label, key=key, directory=self.layer.path / name)
        except FileNotFoundError:
            raise
        except (DamagedError, OSError) as error:
            return Kernel(**known, problem=str(error))
        digests = {file: hashlib.sha256(contents[file]).hexdigest() for file in LISTED}
        return Kernel(**known, digests=digests, metadata=entry.metadata)

    def manifest(self) -> tuple[Manifest | None, str]:
        """The one that is there, or what is wrong with it."""
        try:
            raw = read_regular_file(MANIFEST, inside=self.root, limit=MANIFEST_LIMIT, trusted=self.layer.trusted)
            return decode_manifest(raw), ""
        except (DamagedError, UnsafeError, PermissionError) as error:
            return None, str(error)

    def leftover(self, name: str) -> Leftover | None:
        match = _LEFTOVER.fullmatch(name)
        if match is None:
            return None
        kind, of = match.groups()
        status = os.stat(name, dir_fd=self.root, follow_symlinks=False)
        if (kind, of) == ("tmp", MANIFEST) and stat.S_ISREG(status.st_mode):
            return Leftover(name, status.st_size, self.age_s(name), None, is_file=True)
        label_key, files = label_and_key(of), _files(name, self.root)
        if label_key is None or files is None or not all(_is_file_of_kernel(*file) for file in files.items()):
            return None
        return Leftover(name, _size(files), self.age_s(name), label_key if kind == "tmp" else None)

    def refused_sources(self) -> list[Leftover]:
        files = _files(REFUSED, self.root) or {}
        return [
            Leftover(f"{REFUSED}/{file}", status.st_size, _age_s(status), None, is_file=True)
            for file, status in sorted(files.items())
            if is_refused_source(file, status)
        ]

    def foreign_files_of(self, name: str, is_ours: Callable[[str, os.stat_result], bool]) -> list[str]:
        """What in a directory of files of ours is not; the directory itself if it cannot be looked into."""
        files = _files(name, self.root)
        if files is None:
            return [name]
        return [f"{name}/{file}" for file, status in sorted(files.items()) if not is_ours(file, status)]

    def age_s(self, name: str) -> float:
        return _age_s(os.stat(name, dir_fd=self.root, follow_symlinks=False))


def _files(name: str, root: int) -> dict[str, os.stat_result] | None:
    """What a directory holds; None if it cannot be looked into. Looking trusts nobody: nothing of it is used."""
    try:
        with opened_directory(name, inside=root, trusted=True) as directory:
            found = {}
            for file in os.listdir(directory):
                with suppress(FileNotFoundError):
                    found[file] = os.stat(file, dir_fd=directory, follow_symlinks=False)
            return found
    except (UnsafeError, PermissionError):
        return None


def _age_s(status: os.stat_result) -> float:
    return max(0.0, time.time() - status.st_mtime)


def _is_file_of_kernel(name: str, status: os.stat_result) -> bool:
    return name in SIZE_LIMITS and stat.S_ISREG(status.st_mode)


def _size(files: Mapping[str, os.stat_result]) -> int:
    return sum(status.st_size for file, status in files.items() if _is_file_of_kernel(file, status))
