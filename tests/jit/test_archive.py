"""Kernels in one file: what comes out is what went in, and a file that is not whole writes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from fp8gemm.cache import archive
from fp8gemm.cache.archive import export_kernels, import_kernels
from fp8gemm.cache.entry import CUBIN, SIZE_LIMITS
from fp8gemm.cache.manifest import MANIFEST
from fp8gemm.cache.seal import seal_layer
from fp8gemm.cache.store import LOCKS, Layer
from fp8gemm.errors import CacheError
from tests.jit.caches import export, fill, finds, look, name_of
from tests.jit.cases import snapshot
from tests.jit.children import start


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    return fill(tmp_path / "cache", 1, 2, 3)


@pytest.fixture
def file(layer: Layer, tmp_path: Path) -> Path:
    return export(layer, tmp_path / "kernels.tar.gz")


def contents(place: Path) -> dict[str, bytes]:
    """The files of all kernels of a cache directory."""
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in place.glob("tiny-*/*")}


def test_what_comes_out_is_what_went_in(layer: Layer, file: Path, tmp_path: Path) -> None:
    there = tmp_path / "a" / "b"
    done = import_kernels(file, Layer(there))
    assert done.written == tuple(sorted(map(name_of, (1, 2, 3)))) and not done.present and not done.replaced
    assert contents(there) == contents(layer.path) and len(contents(there)) == 9
    assert all(finds(there, value) for value in (1, 2, 3))
    assert {path.stat().st_mode & 0o777 for path in there.rglob("*") if path.parent.name != LOCKS} == {0o700, 0o600}
    assert not list(there.glob(".tmp-*"))
    locks = {path.name for path in (there / LOCKS).iterdir()}
    assert locks == {f"{name_of(value)}.lock" for value in (1, 2, 3)}, "under the locks, as a compile does it"


def test_the_same_kernels_make_the_same_bytes(layer: Layer, file: Path, tmp_path: Path) -> None:
    other = fill(tmp_path / "elsewhere" / "under another name", 3, 2, 1)
    for path in other.path.rglob("*"):
        os.utime(path, (1, 1))
    seal_layer(other, version="9.9")
    there = snapshot(other.path)
    before = os.umask(0o077)
    try:
        again = export(other, tmp_path / "again.tar.gz")
    finally:
        os.umask(before)
    assert again.read_bytes() == file.read_bytes()
    assert again.read_bytes()[4:8] == bytes(4), "the time of the export is no part of it"
    assert again.stat().st_mode & 0o777 == 0o600
    assert snapshot(other.path) == there, "a sealed directory can be exported, and stays as it is"


def test_any_tar_program_can_list_it(file: Path) -> None:
    with tarfile.open(file) as packed:
        members = packed.getmembers()
    expected = [MANIFEST, *(f"{name}/{each}" for name in sorted(map(name_of, (1, 2, 3))) for each in SIZE_LIMITS)]
    assert [member.name for member in members] == expected
    assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {(0, 0, "", 0o444)}


def test_what_is_there_already_stays_and_what_is_damaged_makes_way(layer: Layer, file: Path, tmp_path: Path) -> None:
    there = fill(tmp_path / "there", 1, 2)
    (there.path / name_of(2) / CUBIN).write_bytes(b"junk")
    before = snapshot(there.path / name_of(1))
    done = import_kernels(file, there)
    assert (done.present, done.replaced, done.written) == ((name_of(1),), (name_of(2),), (name_of(3),))
    assert snapshot(there.path / name_of(1)) == before
    assert contents(there.path) == contents(layer.path)
    (aside,) = there.path.glob(".quarantine-*")
    assert (aside / CUBIN).read_bytes() == b"junk"


def test_an_existing_file_is_replaced_only_by_a_complete_one(
    layer: Layer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()
    inventory = look(layer.path)

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(CacheError, match="No space left"):
        patch.setattr(os, "fsync", full)
        export(layer, file)
    (layer.path / name_of(2) / CUBIN).write_bytes(b"junk")
    with pytest.raises(CacheError, match="was changed while it was exported"):
        export_kernels([(layer, each) for each in inventory.kernels], file, version="1.2")
    shutil.rmtree(layer.path / name_of(2))
    with pytest.raises(CacheError, match="cannot be read any more"):
        export_kernels([(layer, each) for each in inventory.kernels], file, version="1.2")
    with pytest.raises(CacheError, match="at least one kernel"):
        export_kernels([], file, version="1.2")
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
    export(layer, file)
    assert file.read_bytes() != before


def test_a_place_that_no_file_can_be_written_to_is_an_error(layer: Layer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, reason in (("cache", "is none"), ("fifo", "is none"), ("nowhere/file", "No such file")):
        with pytest.raises(CacheError, match=reason):
            export(layer, tmp_path / name)


def test_a_link_is_followed(layer: Layer, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    export(layer, link)
    assert link.is_symlink() and (tmp_path / "target").read_bytes() == file.read_bytes()


def test_a_directory_that_must_not_be_written_is_not(file: Path, tmp_path: Path) -> None:
    sealed, unsafe = fill(tmp_path / "sealed", 9), fill(tmp_path / "unsafe", 9)
    seal_layer(sealed, version="1.2")
    unsafe.path.chmod(0o777)
    (tmp_path / "text").write_text("")
    for layer, reason in ((sealed, "is sealed"), (unsafe, "0777"), (Layer(tmp_path / "text"), "found a file")):
        before = snapshot(layer.path)
        with pytest.raises(CacheError, match=reason):
            import_kernels(file, layer)
        assert snapshot(layer.path) == before
    with pytest.raises(CacheError, match="cannot be changed"):
        import_kernels(file, Layer(tmp_path / "text" / "cache"))


def test_an_import_that_fails_goes_on_where_it_was(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Layer(tmp_path / "there")
    publish = archive.publish_directory
    published: list[str] = []

    def full(name: str, *args: object, **kwargs: object) -> bool:
        if len(published) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        published.append(name)
        return publish(name, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(CacheError, match="No space left.*after 1 of 3 kernels"):
        patch.setattr(archive, "publish_directory", full)
        import_kernels(file, there)
    done = import_kernels(file, there)
    assert (list(done.present), len(done.written)) == (published, 2)


def test_of_two_imports_at_once_each_kernel_is_written_once(file: Path, tmp_path: Path) -> None:
    there = Layer(tmp_path / "there")

    def bring() -> tuple[int, int]:
        done = import_kernels(file, there)
        return len(done.written), len(done.present)

    results = [child.result() for child in [start(bring), start(bring)]]
    assert [sum(counts) for counts in zip(*results, strict=True)] == [3, 3]
    assert all(finds(there.path, value) for value in (1, 2, 3))
    assert look(there.path).leftovers == ()
