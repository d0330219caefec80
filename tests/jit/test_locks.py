"""Locks where there are none, or where somebody put something else: no file outside the cache, and no waiting."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from fp8gemm.cache.eviction import remove, remove_locks
from fp8gemm.cache.files import LOCK_SUFFIX
from fp8gemm.cache.inventory import is_lock_file, take_inventory
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import LOCKS, Layer, Store
from tests.jit.cases import ENTRY, KEY, LABEL, NAME, OTHER_KEY, TEXT, snapshot, warned


def put(kind: str, place: Path, outside: Path) -> None:
    """Put something in the place of the directory of locks."""
    locks = place / LOCKS
    if kind == "symlink":
        locks.symlink_to(outside)
    elif kind == "dangling symlink":
        locks.symlink_to(outside / "nowhere")
    elif kind == "FIFO":
        os.mkfifo(locks)
    elif kind == "file":
        locks.write_text("")
    else:
        locks.mkdir()
        locks.chmod(0o777)


@pytest.mark.parametrize("kind", ["symlink", "dangling symlink", "FIFO", "file", "mode is 0777"])
def test_what_is_no_directory_of_ours_holds_no_locks(place: Path, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{NAME}{LOCK_SUFFIX}").write_text("somebody's")
    put(kind, place, outside)
    before = snapshot(outside)
    store = Store([place])
    with warned(CacheEvent.UNLOCKED) as found:
        for key in (KEY, OTHER_KEY):
            with store.lock(LABEL, key) as held:
                assert not held
        assert store.publish(ENTRY, TEXT) == place / NAME
    assert LOCKS in found[0].reason and kind.split()[-1] in found[0].reason
    layer = Layer(place)
    if kind != "mode is 0777":
        assert LOCKS in take_inventory(layer).foreign
    with warned(CacheEvent.UNLOCKED):
        assert remove(take_inventory(layer), take_inventory(layer).kernels).left == ()
    remove_locks(layer)
    assert snapshot(outside) == before, "nothing is made or removed outside the cache"


def test_a_directory_of_locks_that_others_can_write_serves_where_they_are_trusted(place: Path) -> None:
    put("mode is 0777", place, place)
    with warned(), Store([place], trusted=[place]).lock(LABEL, KEY) as held:
        assert held


@pytest.mark.parametrize("code", [errno.EACCES, errno.EAGAIN, errno.ENOLCK, errno.EIO])
def test_a_file_system_that_refuses_every_lock_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Of these, EACCES and EAGAIN are also what flock says of a lock that somebody holds."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = Store([tmp_path / "cache"])
    started = time.monotonic()
    with warned(CacheEvent.UNLOCKED) as found:
        for key in (KEY, OTHER_KEY, "ef" * 32):
            with store.lock(LABEL, key) as held:
                assert not held
    assert time.monotonic() - started < 5, "a lock that is held is waited for 30 s"
    assert os.strerror(code) in found[0].reason
    assert not list((tmp_path / "cache" / LOCKS).glob("probe.*"))


def test_a_lock_that_is_held_is_still_waited_for(tmp_path: Path) -> None:
    with Store([tmp_path / "cache"]).lock(LABEL, KEY):
        started = time.monotonic()
        with (
            warned(CacheEvent.UNLOCKED) as found,
            Store([tmp_path / "cache"], lock_timeout_s=0.5).lock(LABEL, KEY) as held,
        ):
            assert not held
        assert time.monotonic() - started >= 0.5 and "is locked for 0.5 s" in found[0].reason


def test_what_a_killed_probe_leaves_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    def note(name: str, *, dir_fd: int) -> None:
        left.append(name)
        raise KeyboardInterrupt

    place = tmp_path / "cache"
    with Store([place]).lock(LABEL, KEY), pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(os, "unlink", note)
        with Store([place]).lock(LABEL, KEY):
            pass
    monkeypatch.undo()
    assert is_lock_file(left[0], (place / LOCKS / left[0]).stat()) and take_inventory(Layer(place)).foreign == ()
    remove_locks(Layer(place))
    assert not (place / LOCKS).exists()
