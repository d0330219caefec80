"""One file that holds kernels, for another machine: a gzipped tar of a manifest and the entries that it lists.

The same kernels make the same bytes. Reading takes nothing on trust: the file has to hold exactly what its manifest
lists, in order, each entry verified, and all of it is checked before anything is written.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from fp8gemm.cache.access import changing, opened_layer, require_writable, state_of
from fp8gemm.cache.entry import SIZE_LIMITS, DamagedError, Entry, directory_name, label_and_key, unpack
from fp8gemm.cache.files import make_directories, publish_directory, retrying, set_aside
from fp8gemm.cache.inventory import Kernel, Progress
from fp8gemm.cache.manifest import LISTED, MANIFEST, MANIFEST_LIMIT, Manifest, decode_manifest, manifest_of
from fp8gemm.cache.store import Layer, Store
from fp8gemm.cache.trust import UnsafeError
from fp8gemm.errors import CacheError
from fp8gemm.quoting import counted, quoted, quoted_path
from fp8gemm.reading import NotRegularError, open_regular
from fp8gemm.writing import appearing

_MODE = 0o444
_COMPRESSION = 6
_FILE_LIMIT = 1 << 30
"""Bytes beyond which a file is not ours."""
_READ_LIMIT = 1 << 16
"""Bytes that may stand before the content of a member: its header, and its name where that is long."""
_Outcome = Literal["written", "present", "replaced"]
_BROKEN = (DamagedError, tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Imported:
    """What an import did, as names of entries.

    Attributes:
        written: were not there.
        present: were there, and are as they were.
        replaced: were there, but damaged; those have been moved aside.
    """

    written: tuple[str, ...]
    present: tuple[str, ...]
    replaced: tuple[str, ...]


def export_kernels(
    kernels: Sequence[tuple[Layer, Kernel]], file: Path, *, version: str, progress: Progress | None = None
) -> Manifest:
    """Write kernels into one file, which appears when it is complete and takes the place of one of that name.

    Args:
        kernels: that verify, each with its directory; one of each name.
        file: to write.
        version: of the library, for the manifest.
        progress: called after each kernel.

    Raises:
        CacheError: there are no kernels, one has changed meanwhile, or the file cannot be written.
    """
    if not kernels:
        raise CacheError("expected at least one kernel to export; found none")
    manifest = manifest_of((kernel for _, kernel in kernels), version=version)
    with _written(file) as stream:
        packed = gzip.GzipFile("", "wb", _COMPRESSION, stream, mtime=0)
        with packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, MANIFEST, manifest.encode())
            for layer, kernel in sorted(kernels, key=lambda pair: pair[1].name):
                for name, content in _contents(layer, kernel).items():
                    _add(archive, f"{kernel.name}/{name}", content)
                if progress is not None:
                    progress()
    return manifest


def import_kernels(file: Path, layer: Layer, *, progress: Progress | None = None) -> Imported:
    """Publish the kernels of a file in a directory, which is made if need be. One that is there already stays.

    Args:
        file: made by `export_kernels`.
        layer: the directory.
        progress: called after each kernel.

    Raises:
        CacheError: the file cannot be read, is not complete, or holds anything else than what its manifest lists, and
            nothing was written; the directory is sealed, not to be used, or cannot be written.
    """
    groups: dict[_Outcome, list[str]] = {"written": [], "present": [], "replaced": []}
    with _opened(file) as stream:
        total = sum(1 for _ in _read(stream, file))
        stream.seek(0)
        with changing(layer):
            make_directories(layer.path)
        with opened_layer(layer) as root:
            require_writable(layer, state_of(root))
        store = Store([layer.path], trusted=[layer.path] if layer.trusted else [])
        try:
            for entry, files in _read(stream, file):
                groups[_publish(entry, files, layer, store)].append(directory_name(entry.label, entry.key))
                if progress is not None:
                    progress()
        except CacheError as error:
            done = sum(map(len, groups.values()))
            raise CacheError(f"{error}, after {done} of {counted(total, 'kernel')}; another import goes on") from error
    return Imported(**{outcome: tuple(names) for outcome, names in groups.items()})


def _publish(entry: Entry, files: Mapping[str, bytes], layer: Layer, store: Store) -> _Outcome:
    """Publish an entry as a compile does."""
    name = directory_name(entry.label, entry.key)
    outcome: _Outcome = "written"
    with store.lock(entry.label, entry.key), opened_layer(layer) as root, changing(layer):
        try:
            retrying(layer.read, entry.label, entry.key)
            return "present"
        except FileNotFoundError:
            pass
        except DamagedError:
            retrying(set_aside, name, inside=root)
            outcome = "replaced"
        except UnsafeError as error:
            raise CacheError(f"the cache directory {layer.path} is refused: {error}") from error
        return outcome if retrying(publish_directory, name, files, inside=root) else "present"


def _contents(layer: Layer, kernel: Kernel) -> dict[str, bytes]:
    try:
        files = retrying(layer.read_files, kernel.name)
    except (DamagedError, UnsafeError, OSError) as error:
        raise CacheError(f"{layer.path / kernel.name} cannot be read any more: {error}") from error
    if any(hashlib.sha256(files[name]).hexdigest() != digest for name, digest in kernel.digests.items()):
        raise CacheError(f"{layer.path / kernel.name} was changed while it was exported")
    return files


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # time 0, user and group 0 without names
    member.size, member.mode = len(content), _MODE
    archive.addfile(member, io.BytesIO(content))


@contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    """A file to write, as `appearing` makes it, where there is a file or nothing."""
    target = os.path.realpath(file)
    if os.path.exists(target) and not os.path.isfile(target):
        raise CacheError(f"expected the name of a file to write; {quoted_path(file)} is none")
    try:
        with appearing(target) as stream:
            yield stream
    except OSError as error:
        raise CacheError(f"{quoted_path(file)} cannot be written: {error.strerror or error}") from error


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    with ExitStack() as stack:
        try:
            descriptor, status = open_regular(file)
            stream = stack.enter_context(open(descriptor, "rb"))
        except NotRegularError as error:
            found = f"{quoted_path(file)} is {error}, no regular file"
            raise CacheError(f"expected a file made by `fp8gemm cache export`; {found}") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise CacheError(f"{quoted_path(file)} cannot be read: {getattr(error, 'strerror', error)}") from error
        if status.st_size > _FILE_LIMIT:
            found = f"{quoted_path(file)} has {status.st_size}"
            raise CacheError(f"expected a file made by `fp8gemm cache export`, of at most {_FILE_LIMIT} bytes; {found}")
        yield stream


def _read(stream: BinaryIO, file: Path) -> Iterator[tuple[Entry, dict[str, bytes]]]:
    """The entries of an archive with their files, each verified; to exhaust it is to have checked the whole of it."""
    entries = _entries(stream)
    while True:
        try:
            entry = next(entries, None)
        except _BROKEN as error:
            made = f"{quoted_path(file)} is not, or no longer, a file made by `fp8gemm cache export`"
            raise CacheError(f"{made}: {error}") from error
        if entry is None:
            return
        yield entry


class _Unpacked(gzip.GzipFile):
    """What is written in the file must not decide how much memory is asked for.

    Attributes:
        left: bytes that may be read before the next member, or the next content, is asked for.
    """

    left = 0

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= self.left:
            raise DamagedError(f"expected a piece of at most {self.left} bytes; found one of {size}")
        content = super().read(size)
        self.left -= len(content)
        return content


def _entries(stream: BinaryIO) -> Iterator[tuple[Entry, dict[str, bytes]]]:
    unpacked = _Unpacked(fileobj=stream, mode="rb")
    unpacked.left = _READ_LIMIT
    with tarfile.open(fileobj=unpacked, mode="r:") as archive:
        manifest = decode_manifest(_member(archive, unpacked, MANIFEST, MANIFEST_LIMIT))
        if not manifest.entries:
            raise DamagedError(f"expected at least one kernel; {MANIFEST} lists none")
        for name in sorted(manifest.entries):
            files = {file: _member(archive, unpacked, f"{name}/{file}", limit) for file, limit in SIZE_LIMITS.items()}
            for file in LISTED:
                if hashlib.sha256(files[file]).hexdigest() != manifest.entries[name][file]:
                    raise DamagedError(f"{name}/{file} does not have the SHA-256 that {MANIFEST} gives")
            label_key = label_and_key(name)
            assert label_key is not None, "a manifest with another name does not decode"
            label, key = label_key
            try:
                entry = unpack(files, label=label, key=key, directory=Path(name))
            except DamagedError as error:
                raise DamagedError(f"{name}: {error}") from error
            yield entry, files
        # Reading to the end also compares the checksum of the whole.
        unpacked.left = _READ_LIMIT
        unpacked.seek(archive.offset)
        padding = unpacked.read(2 * tarfile.RECORDSIZE)
        if any(padding) or unpacked.read(1):
            raise DamagedError(f"it holds more than {MANIFEST} lists")


def _member(archive: tarfile.TarFile, unpacked: _Unpacked, name: str, limit: int) -> bytes:
    """The content of the next member, which must be a plain file of this name."""
    unpacked.left = _READ_LIMIT
    member = archive.next()
    if member is None:
        raise DamagedError(f"it ends before {name}")
    if (member.name, member.type) != (name, tarfile.REGTYPE) or member.size > limit:
        kind = "" if member.type == tarfile.REGTYPE else f" of type {member.type!r}"
        raise DamagedError(
            f"expected {name} of at most {limit} bytes; found {quoted(member.name)}{kind}, {member.size} bytes"
        )
    content = archive.extractfile(member)
    assert content is not None, "it is a file"
    unpacked.left = limit
    return content.read(limit)
