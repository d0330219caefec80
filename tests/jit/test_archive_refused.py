"""Files of kernels that are not whole, or that somebody altered: refused before anything is written."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fp8gemm.cache import archive
from fp8gemm.cache.archive import import_kernels
from fp8gemm.cache.entry import CUBIN, SCHEMA_VERSION, SIDECAR, SIZE_LIMITS, encode_document, pack
from fp8gemm.cache.manifest import MANIFEST, Manifest
from fp8gemm.cache.store import Layer
from fp8gemm.errors import CacheError
from tests.attacked import attacked
from tests.jit.caches import export, fill, kernel, name_of

Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return export(fill(tmp_path / "cache", 1, 2, 3), tmp_path / "kernels.tar.gz")


def refused(file: Path, tmp_path: Path, match: str = "cache export") -> None:
    """Importing raises, and writes nothing."""
    there = tmp_path / "there"
    with pytest.raises(CacheError, match=match) as error:
        import_kernels(file, Layer(there))
    assert str(file) in str(error.value)
    assert not there.exists()


def test_a_file_that_was_cut_off_is_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for length in [0, 1, 9, 10, 18, *range(20, len(whole), len(whole) // 60), len(whole) - 9, len(whole) - 1]:
        file.write_bytes(whole[:length])
        refused(file, tmp_path)
    file.write_bytes(whole + b"more")
    refused(file, tmp_path)
    file.write_bytes(gzip.compress(gzip.decompress(whole) + bytes(1 << 16) + b"more"))
    refused(file, tmp_path, "holds more")


def test_a_flipped_bit_is_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    # The first ten bytes are gzip's own: a time and a name of a system among them, which mean nothing.
    for position in [0, 1, 2, *range(10, len(whole), len(whole) // 120), *range(len(whole) - 8, len(whole))]:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        file.write_bytes(flipped)
        refused(file, tmp_path)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("kernels")
    (tmp_path / "zipped text").write_bytes(gzip.compress(b"kernels" * 1000))
    for name, reason in (
        *(("fifo", "no regular file"), (".", "no regular file"), ("nowhere", "cannot be read")),
        *(("text", "cache export"), ("zipped text", "cache export")),
    ):
        refused(tmp_path / name, tmp_path, reason)


def repacked(file: Path, change: Callable[[Members], object]) -> None:
    """Write the file anew with other members, as somebody who knows its format could."""
    with tarfile.open(file) as packed:
        members = [(member, packed.extractfile(member).read()) for member in packed]  # type: ignore[union-attr]
    change(members)
    with tarfile.open(file, "w:gz") as packed:
        for member, content in members:
            packed.addfile(member, io.BytesIO(content))


def extra(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(content), kind, target
    return member, content


def renamed(name: str) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        members[3][0].name = name

    return change


def typed(kind: bytes) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        members[3] = extra(members[3][0].name, kind=kind, target="/etc/passwd")

    return change


def listed(name: str, entries: dict[str, bytes]) -> Callable[[Members], None]:
    """Put in another entry with a manifest that lists it, digests and all."""

    def change(members: Members) -> None:
        digest = {each: hashlib.sha256(entries[each]).hexdigest() for each in (CUBIN, SIDECAR)}
        manifest = Manifest("1.2", {name: digest}, 0, ())
        members[:] = [extra(MANIFEST, manifest.encode())]
        members += [extra(f"{name}/{each}", entries[each]) for each in SIZE_LIMITS]

    return change


BARE = {"schema": SCHEMA_VERSION, "label": kernel(9).label, "key": kernel(9).key}
OTHER = pack(kernel(9), "// tiny 9\n")
ANOTHER = pack(replace(kernel(9), cubin=b"another"), "// tiny 9\n")


def exchanged(members: Members) -> None:
    """An intact entry, and then another intact one in its place, under the manifest of the first."""
    listed(name_of(9), OTHER)(members)
    members[1:] = [extra(f"{name_of(9)}/{each}", ANOTHER[each]) for each in SIZE_LIMITS]


ALTERED: dict[str, Callable[[Members], object]] = {
    "a path that climbs": renamed("../evil"),
    "an absolute path": renamed("/evil"),
    "a path within another": renamed(f"{name_of(1)}/../{CUBIN}"),
    "a symlink": typed(tarfile.SYMTYPE),
    "a hard link": typed(tarfile.LNKTYPE),
    "a device": typed(tarfile.CHRTYPE),
    "a directory": typed(tarfile.DIRTYPE),
    "a FIFO": typed(tarfile.FIFOTYPE),
    "a member twice": lambda members: members.insert(3, members[3]),
    "a member twice at the end": lambda members: members.append(members[-1]),
    "one more at the end": lambda members: members.append(extra("evil", b"x")),
    "another order": lambda members: members.reverse(),
    "no manifest": lambda members: members.pop(0),
    "nothing": lambda members: members.clear(),
    "the manifest alone": lambda members: members.__delitem__(slice(1, None)),
    "one less": lambda members: members.pop(),
    "other contents": lambda members: members.__setitem__(3, extra(members[3][0].name, b"evil")),
    "an entry with another's name": listed(name_of(8), OTHER),
    "an entry of no key": listed("evil", OTHER),
    "an entry with a path for a name": listed(f"../tiny-9.{kernel(9).key}", OTHER),
    "another entry in its place": exchanged,
    "a sidecar without digests": listed(name_of(9), {**OTHER, SIDECAR: encode_document(BARE)}),
    "a sidecar without end": listed(name_of(9), {**OTHER, SIDECAR: b"[" * 100_000}),
}


@pytest.mark.parametrize("case", ALTERED)
def test_a_file_that_somebody_altered_is_refused(file: Path, tmp_path: Path, case: str) -> None:
    repacked(file, ALTERED[case])
    refused(file, tmp_path)
    assert not list(tmp_path.rglob("evil"))


def test_a_file_packed_anew_with_the_same_members_is_taken(file: Path, tmp_path: Path) -> None:
    repacked(file, lambda members: None)
    assert len(import_kernels(file, Layer(tmp_path / "there")).written) == 3
    repacked(file, listed(name_of(9), OTHER))
    assert import_kernels(file, Layer(tmp_path / "there")).written == (name_of(9),)


def bomb(path: Path, *parts: bytes) -> Path:
    """A file of gzip that is made a thousand times larger by unpacking."""
    with gzip.open(path, "wb", 6) as packed:
        for part in parts:
            packed.write(part)
    return path


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


MIB = bytes(1 << 20)
BOMBS: dict[str, list[bytes]] = {
    "a name of 64 MiB": [header("././@LongLink", 64 << 20, tarfile.GNUTYPE_LONGNAME), *[b"x" * len(MIB)] * 64],
    "64 MiB about one member": [header("x", 64 << 20, tarfile.XHDTYPE), *[MIB] * 64],
    "a manifest of 5 million lists": [header(MANIFEST, 15 << 20), *[b"[]," * (len(MIB) // 3)] * 15, bytes(1024)],
    "a manifest of 600 brackets": [header(MANIFEST, 1200), b"[" * 600 + b"]" * 600 + bytes(848)],
    "a manifest of 64 MiB": [header(MANIFEST, 64 << 20), *[MIB] * 64],
}


@pytest.mark.parametrize("case", BOMBS)
def test_what_is_small_when_packed_and_large_when_not_takes_no_memory(tmp_path: Path, case: str) -> None:
    done = attacked("cache", "import", str(bomb(tmp_path / "bomb", *BOMBS[case])), "--into", str(tmp_path / "there"))
    assert done.code == 1 and "cache export" in done.line and len(done.line) < 500
    assert done.megabytes < 100 and not (tmp_path / "there").exists()


def test_a_name_of_a_member_is_quoted_in_few_characters(file: Path, tmp_path: Path) -> None:
    repacked(file, renamed("x" * 10_000))
    with pytest.raises(CacheError, match="found 'xxx") as caught:
        import_kernels(file, Layer(tmp_path / "there"))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_size_that_a_file_claims_is_not_allocated(
    tmp_path: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kilobyte of file may say that terabytes follow, or be a thousand times that once unpacked."""
    monkeypatch.setattr(archive, "_READ_LIMIT", 1 << 16)
    monkeypatch.setattr(archive, "MANIFEST_LIMIT", 1 << 15)
    for size, follow in ((1 << 42, 0), (1 << 20, 1 << 20)):
        member = tarfile.TarInfo(MANIFEST)
        member.type, member.size = kind, size
        raw = member.tobuf(tarfile.GNU_FORMAT) + bytes(follow)
        (tmp_path / "bomb").write_bytes(gzip.compress(raw, mtime=0))
        refused(tmp_path / "bomb", tmp_path, "at most")
