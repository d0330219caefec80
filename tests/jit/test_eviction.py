"""Removing kernels: which ones, nothing that is not ours, and whole ones only."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.cache import eviction
from fp8gemm.cache.access import State
from fp8gemm.cache.entry import CUBIN
from fp8gemm.cache.eviction import expendable, removable, remove, remove_locks
from fp8gemm.cache.inventory import Inventory, Kernel, Leftover
from fp8gemm.cache.manifest import MANIFEST
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.seal import seal_layer
from fp8gemm.cache.store import LOCKS, Layer, Store
from fp8gemm.errors import CacheError
from tests.jit.caches import fill, finds, kernel, look, name_of
from tests.jit.cases import snapshot, warned
from tests.jit.children import OTHER_USER, as_root, become, run, start


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return fill(tmp_path / "cache", 1, 2, 3).path


def listed(*items: Kernel | Leftover) -> Inventory:
    kernels = tuple(item for item in items if isinstance(item, Kernel))
    leftovers = tuple(item for item in items if isinstance(item, Leftover))
    return Inventory(Layer(Path("/nowhere")), State.WRITABLE, kernels, leftovers, (), None, "")


def aged(name: str, age_s: float, size: int = 100, **rest: Any) -> Kernel:
    return Kernel(name, name, "ab" * 32, size, age_s, **rest)


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({"older_than_s": 20}, "left old"),
        ({"older_than_s": 30}, "left"),
        ({"older_than_s": 0}, "left old middle young"),
        ({"max_size": 350}, ""),
        ({"max_size": 349}, "left"),
        ({"max_size": 300}, "left"),
        ({"max_size": 299}, "left old"),
        ({"max_size": 0}, "left old middle young"),
        ({"older_than_s": 20, "max_size": 150}, "left old middle"),
        ({}, ""),
    ],
)
def test_the_oldest_go_first(limits: dict[str, Any], expected: str) -> None:
    items = aged("middle", 20), aged("young", 10), aged("old", 30), Leftover("left", 50, 40, None)
    assert [item.name for item in expendable(listed(*items), **limits)] == expected.split()


def test_a_kernel_with_a_foreign_file_is_never_chosen_and_counts() -> None:
    foreign = aged("foreign", 99, foreign=("foreign/notes",))
    assert [item.name for item in removable(listed(foreign, aged("ours", 1)))] == ["ours"]
    assert [item.name for item in expendable(listed(foreign, aged("ours", 1)), max_size=150)] == ["ours"]


def test_what_is_removed_is_gone_and_the_rest_untouched(place: Path) -> None:
    for name in ("notes.txt", ".tmp-of-somebody", f".tmp-{name_of(1)}-short"):
        (place / name).write_text("keep")
    (place / name_of(3) / "notes").write_text("keep")
    for left in (f".tmp-{name_of(2)}-01234567", f".quarantine-{name_of(9)}-01234567"):
        (place / left).mkdir(mode=0o700)
        (place / left / CUBIN).write_bytes(b"half")
    (place / f".tmp-{MANIFEST}-01234567").write_text("half")
    (place / name_of(2) / CUBIN).write_bytes(b"junk")
    inventory = look(place)
    done = remove(inventory, removable(inventory))
    remove_locks(inventory.layer)
    assert (len(done.removed), done.left) == (5, ())
    assert done.size == inventory.size - look(place).size > 0
    assert sorted(path.name for path in place.iterdir()) == sorted(
        ["notes.txt", ".tmp-of-somebody", f".tmp-{name_of(1)}-short", name_of(3)]
    )
    assert finds(place, 3) and (place / name_of(3) / "notes").read_text() == "keep"


def test_a_foreign_file_that_comes_after_the_look_is_left(place: Path) -> None:
    inventory = look(place)
    (place / name_of(1) / "notes").write_text("keep")
    done = remove(inventory, removable(inventory))
    assert done.left == ((name_of(1), f"not ours: {name_of(1)}/notes"),)
    assert finds(place, 1) and not finds(place, 2) and not finds(place, 3)


def test_what_has_gone_meanwhile_counts_as_removed(place: Path) -> None:
    inventory = look(place)
    assert remove(inventory, removable(inventory)).removed == remove(inventory, removable(inventory)).removed
    assert look(place).kernels == ()
    assert list((place / LOCKS).iterdir()) == [], "no lock outlives its kernel"


@pytest.mark.parametrize("mode", [0o555, 0o777])
def test_a_sealed_or_unsafe_directory_is_untouched(place: Path, mode: int) -> None:
    inventory = look(place)
    place.chmod(mode)
    before = snapshot(place)
    for work in (lambda: remove(inventory, removable(inventory)), lambda: remove_locks(inventory.layer)):
        with pytest.raises(CacheError, match="sealed" if mode == 0o555 else "0777"):
            work()
    assert snapshot(place) == before


def test_of_a_broken_seal_the_manifest_goes_too(place: Path) -> None:
    seal_layer(Layer(place), version="1.2")
    place.chmod(0o700)
    inventory = look(place)
    remove(inventory, removable(inventory))
    remove_locks(inventory.layer)
    assert list(place.iterdir()) == []


@as_root
def test_a_user_can_clear_what_was_sealed_once(open_to_all: Path) -> None:
    open_to_all.chmod(0o777)

    def as_other() -> tuple[object, ...]:
        become(OTHER_USER)  # whom, unlike root, the modes of the entries bind
        layer = fill(open_to_all / "cache", 1, 2)
        seal_layer(layer, version="1.2")
        layer.path.chmod(0o700)
        inventory = look(layer.path)
        return remove(inventory, removable(inventory)).left, sorted(path.name for path in layer.path.iterdir())

    assert run(as_other) == ((), [LOCKS])


def test_where_nothing_can_be_renamed_it_is_removed_all_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def across(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EXDEV, "a directory of the lower layer of an overlay")

    inventory = look(place)
    monkeypatch.setattr(os, "rename", across)
    assert remove(inventory, removable(inventory)).left == ()
    assert look(place).kernels == ()


def test_what_the_file_system_keeps_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    inventory = look(place)
    monkeypatch.setattr(os, "rename", failing)
    done = remove(inventory, removable(inventory))
    assert len(done.left) == 3 and "Read-only" in done.left[0][1] and done.removed == ()
    assert finds(place, 1)


@pytest.mark.parametrize("abandoned", [False, True])
def test_what_somebody_may_be_writing_is_left(place: Path, monkeypatch: pytest.MonkeyPatch, abandoned: bool) -> None:
    monkeypatch.setattr(eviction, "LOCK_TIMEOUT_S", 0.05)
    entry = kernel(9)
    with Store([place]).lock(entry.label, entry.key) as held:
        assert held
        writing = place / f".tmp-{name_of(9)}-01234567"
        writing.mkdir(mode=0o700)
        if abandoned:
            os.utime(writing, (0, 0))
        inventory = look(place)
        with warned(CacheEvent.UNLOCKED):
            done = remove(inventory, removable(inventory))
        assert [name for name, _ in done.left] == ([] if abandoned else [writing.name])
        assert writing.exists() != abandoned
    assert look(place).kernels == (), "entries are removed whoever holds which lock"


def test_a_lock_that_is_held_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "LOCK_TIMEOUT_S", 0.05)
    held, free = kernel(8), kernel(9)
    with Store([place]).lock(free.label, free.key):
        pass
    (place / LOCKS / "notes").write_text("keep")
    with Store([place]).lock(held.label, held.key), warned(CacheEvent.UNLOCKED):
        remove_locks(Layer(place))
        assert sorted(path.name for path in (place / LOCKS).iterdir()) == ["notes", f"{name_of(8)}.lock"]
    remove_locks(Layer(place))
    assert [path.name for path in (place / LOCKS).iterdir()] == ["notes"]


def test_a_loader_gets_all_of_a_kernel_or_none_while_it_is_removed_and_written(place: Path) -> None:
    stop = time.monotonic() + 2

    def load() -> tuple[int, int]:
        hits = misses = 0
        while time.monotonic() < stop:
            with warned():
                if finds(place, 1):
                    hits += 1
                else:
                    misses += 1
        return hits, misses

    def evict() -> int:
        rounds = 0
        while time.monotonic() < stop:
            fill(place, 1)
            inventory = look(place)
            assert remove(inventory, removable(inventory)).left == ()
            remove_locks(inventory.layer)
            rounds += 1
        return rounds

    work: list[Callable[[], object]] = [load, load, evict]
    children = [start(each) for each in work]
    *loaded, rounds = [child.result() for child in children]
    assert rounds > 1
    assert all(hits and misses for hits, misses in loaded), loaded
