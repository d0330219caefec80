"""Sealing a cache directory: what it takes, what it leaves, and what is noticed afterwards."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.cache import seal
from fp8gemm.cache.access import State
from fp8gemm.cache.entry import CUBIN, SIDECAR, SIZE_LIMITS
from fp8gemm.cache.manifest import MANIFEST, decode_manifest
from fp8gemm.cache.seal import find_problems, seal_layer
from fp8gemm.cache.store import LOCKS, Layer, Store
from fp8gemm.errors import CacheError
from tests.jit.caches import fill, finds, kernel, look, name_of
from tests.jit.cases import snapshot
from tests.jit.children import (
    OTHER_USER,
    as_root,
    become,
    die_before_call,
    mount_read_only,
    mount_small,
    own_mounts,
    require_mounts,
    run,
    start,
)


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    return fill(tmp_path / "cache", 1, 2, 3)


@pytest.fixture
def sealed(layer: Layer) -> Path:
    seal_layer(layer, version="1.2")
    return layer.path


def modes(place: Path) -> set[tuple[bool, int]]:
    """Whether a directory, and the mode, of everything."""
    return {(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in [place, *place.rglob("*")]}


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_a_sealed_directory_is_closed_and_has_a_manifest(layer: Layer, mask: int) -> None:
    before = os.umask(mask)
    try:
        done = seal_layer(layer, version="1.2")
    finally:
        os.umask(before)
    assert modes(layer.path) == {(True, 0o555), (False, 0o444)}
    assert not done.already and decode_manifest((layer.path / MANIFEST).read_bytes()) == done.manifest
    document = json.loads((layer.path / MANIFEST).read_text())
    assert (document["version"], document["count"], document["nvrtc_versions"]) == ("1.2", 3, ["12.9"])
    assert document["size"] == sum((layer.path / name_of(1) / file).stat().st_size for file in SIZE_LIMITS) * 3
    assert {name: sorted(each) for name, each in document["entries"].items()} == {
        name_of(value): [CUBIN, SIDECAR] for value in (1, 2, 3)
    }
    assert look(layer.path).state is State.SEALED and find_problems(look(layer.path)) == ()
    assert all(finds(layer.path, value) for value in (1, 2, 3))


def test_sealing_again_verifies_and_changes_nothing(sealed: Path) -> None:
    before = snapshot(sealed)
    assert seal_layer(Layer(sealed), version="9.9").already
    assert seal_layer(Layer(sealed), version="9.9").manifest.version == "1.2"
    assert snapshot(sealed) == before


def test_a_loader_does_without_the_manifest(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = os.open

    def noting(path: str, *args: int, **kwargs: int) -> int:
        opened.append(os.fspath(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", noting)
    assert finds(sealed, 2)
    assert sorted(opened) == sorted([str(sealed), name_of(2), *SIZE_LIMITS])


Harm = Callable[[Path], object]
REFUSED: dict[str, tuple[Harm, str]] = {
    "damaged": (lambda place: (place / name_of(2) / CUBIN).write_bytes(b"x"), f"{name_of(2)} is damaged"),
    "foreign": (lambda place: (place / "notes").write_text("x"), "notes is not ours"),
    "foreign among files": (lambda place: (place / name_of(2) / "notes").write_text("x"), f"{name_of(2)}/notes is not"),
    "foreign manifest": (lambda place: (place / MANIFEST).write_text("{}"), f"{MANIFEST} is not ours"),
    "empty": (lambda place: [shutil.rmtree(place / name_of(value)) for value in (1, 2, 3)], "at least one kernel"),
    "gone": (shutil.rmtree, "there is none"),
    "open to others": (lambda place: place.chmod(0o777), "0777"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_sealed_is_not_changed(layer: Layer, case: str) -> None:
    harm, reason = REFUSED[case]
    harm(layer.path)
    before = snapshot(layer.path) if case != "gone" else None
    with pytest.raises(CacheError, match=reason):
        seal_layer(layer, version="1.2")
    assert (snapshot(layer.path) if case != "gone" else None) == before


def test_leftovers_and_locks_are_removed(layer: Layer) -> None:
    for left in (f".tmp-{name_of(1)}-01234567", f".tmp-{name_of(9)}-01234567", f".quarantine-{name_of(2)}-01234567"):
        (layer.path / left).mkdir(mode=0o700)
        (layer.path / left / CUBIN).write_bytes(b"half")
    (layer.path / f".tmp-{MANIFEST}-01234567").write_text("half")
    with Store([layer.path]).lock("tiny-1", kernel(1).key) as held:
        assert held
    assert (layer.path / LOCKS).is_dir()
    seal_layer(layer, version="1.2")
    assert sorted(path.name for path in layer.path.iterdir()) == sorted([MANIFEST, *map(name_of, (1, 2, 3))])


def test_a_directory_that_somebody_writes_to_is_not_sealed(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp8gemm.cache.eviction.LOCK_TIMEOUT_S", 0.05)
    entry = kernel(9)
    with (
        Store([layer.path]).lock(entry.label, entry.key),
        pytest.warns(match="is locked"),
        pytest.raises(CacheError, match="somebody may be writing it"),
    ):
        (layer.path / f".tmp-{name_of(9)}-01234567").mkdir(mode=0o700)
        seal_layer(layer, version="1.2")
    assert look(layer.path).state is State.WRITABLE

    publish = seal.publish_file

    def meanwhile(*args: Any, **kwargs: Any) -> None:
        publish(*args, **kwargs)
        fill(layer.path, 4)

    with monkeypatch.context() as patch, pytest.raises(CacheError, match=f"somebody writes to it:\n  {name_of(4)}"):
        patch.setattr(seal, "publish_file", meanwhile)
        seal_layer(layer, version="1.2")
    assert look(layer.path).state is State.WRITABLE and fill(layer.path, 5)
    assert seal_layer(layer, version="1.2").manifest.count == 5


def test_sealing_that_is_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    whole = fill(tmp_path / "whole", 1, 2).path
    (whole / f".tmp-{name_of(1)}-01234567").mkdir(mode=0o700)
    states = []
    for step in range(100):
        place = tmp_path / str(step)
        shutil.copytree(whole, place)
        child = start(lambda step=step, place=place: seal_and_die(place, step))  # type: ignore[misc]
        killed = child.exit_code() != 0
        states.append(look(place).state)
        assert finds(place, 1) and finds(place, 2), f"step {step}"
        if states[-1] is State.WRITABLE:
            assert fill(place, 3) and finds(place, 3), "it is a cache like any other"
        done = seal_layer(Layer(place), version="1.2")
        assert done.already == (states[-1] is State.SEALED)
        assert find_problems(look(place)) == () and modes(place) == {(True, 0o555), (False, 0o444)}
        if not killed:
            break
    assert not killed and len(states) > 20
    assert states == sorted(states, key=lambda state: state is State.SEALED), "it is sealed by its last steps"


def seal_and_die(place: Path, step: int) -> None:
    """Seal, and end this process before its call number ``step`` of those that change a file system."""
    die_before_call(step, "rename", "unlink", "rmdir", "fchmod", "fsync")
    seal_layer(Layer(place), version="1.2")


@as_root
def test_what_root_has_sealed_serves_and_verifies_for_another_user(open_to_all: Path) -> None:
    place = open_to_all / "cache"
    seal_layer(fill(place, 1, 2), version="1.2")

    def as_other() -> tuple[bool, int, tuple[str, ...]]:
        become(OTHER_USER)
        assert seal_layer(Layer(place), version="1.2").already
        return finds(place, 1), len(look(place).kernels), find_problems(look(place))

    assert run(as_other) == (True, 2, ())


@as_root
def test_only_the_owner_seals(open_to_all: Path) -> None:
    place = fill(open_to_all / "cache", 1).path
    for path in [place, *place.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)

    def as_other() -> None:
        become(OTHER_USER)
        with pytest.raises(CacheError, match=f"read-only for user {OTHER_USER}"):
            seal_layer(Layer(place), version="1.2")

    before = snapshot(place)
    run(as_other)
    assert snapshot(place) == before


def test_a_file_system_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    require_mounts()
    layer = fill(tmp_path / "cache", 1)

    def read_only() -> None:
        own_mounts()
        mount_read_only(layer.path)
        with pytest.raises(CacheError, match="read-only"):
            seal_layer(layer, version="1.2")

    def full() -> None:
        own_mounts()
        mount_small(tmp_path / "small", "size=64k")
        small = fill(tmp_path / "small" / "cache", 1, 2)
        Path(tmp_path, "small", "filler").write_bytes(b"x" * (os.statvfs(small.path).f_bavail * 4096))
        with pytest.raises(CacheError, match="No space left"):
            seal_layer(small, version="1.2")
        assert finds(small.path, 1) and not list(small.path.glob(".tmp-*"))
        Path(tmp_path, "small", "filler").unlink()
        assert seal_layer(small, version="1.2").manifest.count == 2

    run(read_only)
    run(full)
