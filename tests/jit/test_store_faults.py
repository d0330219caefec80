"""File systems that fail: the store tries again, goes without, and leaves nothing half done."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8gemm.cache import files
from fp8gemm.cache.entry import CUBIN, Entry
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from tests.jit.cases import ENTRY, KEY, LABEL, NAME, OTHER_KEY, TEXT, warned
from tests.jit.children import die_before_call


def test_with_nothing_writable_it_is_said_once_and_nothing_is_made(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    for directories in ([], [blocker / "cache"]):
        store = Store(directories)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for key in (OTHER_KEY, "ef" * 32):
                assert store.find(LABEL, key).entry is None
                with store.lock(LABEL, key) as held:
                    assert not held
                assert store.publish(Entry(key, LABEL, b"x", {}), TEXT) is None
        assert len(caught) == 1
    assert list(tmp_path.iterdir()) == [blocker]


@pytest.mark.parametrize("call", ["rename", "fsync", "mkdir", "fchmod"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, full)
    with warned(CacheEvent.MEMORY_ONLY) as found:
        store = Store([place])
        assert store.publish(ENTRY, TEXT) is None
        assert store.publish(Entry(OTHER_KEY, LABEL, b"x", {}), TEXT) is None
    assert os.strerror(code) in found[0].reason
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EBUSY, errno.EIO, errno.EINTR])
@pytest.mark.parametrize("failures", [2, 1000])
def test_a_passing_fault_is_tried_again_a_lasting_one_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failures: int
) -> None:
    place = tmp_path / "cache"
    monkeypatch.setattr(files, "_PAUSES_S", (0, 0, 0))
    publishing = Flaky(os.rename, code, failures)
    with monkeypatch.context() as patch, warned(*([] if failures == 2 else [CacheEvent.MEMORY_ONLY])):
        patch.setattr(os, "rename", publishing)
        assert (Store([place]).publish(ENTRY, TEXT) is not None) == (failures == 2)
    assert publishing.calls <= 4
    assert not list(place.glob(".tmp-*"))

    Store([place]).publish(ENTRY, TEXT)
    reading = Flaky(os.open, code, failures)
    with monkeypatch.context() as patch, warned(*([] if failures == 2 else [CacheEvent.UNREADABLE])):
        patch.setattr(os, "open", reading)
        assert (Store([place]).find(LABEL, KEY).entry is not None) == (failures == 2)
    assert (place / NAME).is_dir(), "an entry that cannot be read now is not damaged"


def test_the_lock_excludes_threads_and_is_given_up_after_a_while(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with Store([tmp_path / "cache"]).lock(LABEL, KEY) as held:
            assert held
            entered.set()
            leave.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(30)
    store = Store([tmp_path / "cache"], lock_timeout_s=0.1)
    with warned(CacheEvent.UNLOCKED), store.lock(LABEL, KEY) as held:
        assert not held
    with warned(), store.lock(LABEL, OTHER_KEY) as held:
        assert held, "another kernel has another lock"
    leave.set()
    holder.join()
    with warned(), store.lock(LABEL, KEY) as held:
        assert held


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "no locks"), NotImplementedError("no flock")])
def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", fail)
    store = Store([tmp_path / "cache"])
    with warned(CacheEvent.UNLOCKED), store.lock(LABEL, KEY) as held:
        assert not held
        assert store.publish(ENTRY, TEXT) is not None


def test_an_exception_in_the_locked_block_is_the_callers(tmp_path: Path) -> None:
    store = Store([tmp_path / "cache"])
    with pytest.raises(OSError, match="mine"), store.lock(LABEL, KEY):
        raise OSError("mine")
    with store.lock(LABEL, KEY) as held:
        assert held


def test_what_a_killed_writer_left_is_removed_by_the_next_holder_of_its_lock(place: Path) -> None:
    left, foreign = place / f".tmp-{NAME}-0123", place / f".tmp-{LABEL}.{'cd' * 32}-0123"
    for directory in (left, foreign):
        directory.mkdir(mode=0o700)
        (directory / CUBIN).write_bytes(b"half")
    with Store([place]).lock(LABEL, KEY):
        pass
    assert not left.exists()
    assert foreign.exists(), "another kernel's writer may be at work"


def test_a_layer_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with warned(CacheEvent.MEMORY_ONLY):
        assert Store([tmp_path / "image", tmp_path / "file" / "cache"]).publish(ENTRY, TEXT) is None
    assert not (tmp_path / "image").exists()


def test_a_writer_killed_at_any_step_leaves_all_or_nothing(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    outcomes = []
    for step in range(100):
        child = os.fork()
        if child == 0:
            die_before_call(step, "mkdir", "open", "fchmod", "chmod", "fsync", "rename", "close")
            Store([place]).publish(ENTRY, TEXT)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        store = Store([place])
        found = store.find(LABEL, KEY)
        assert found.damaged == ()
        outcomes.append(found.entry is not None)
        if found.entry is not None:
            assert found.entry.cubin == ENTRY.cubin
            shutil.rmtree(place / NAME)
        with store.lock(LABEL, KEY) as held:
            assert held
            assert store.publish(ENTRY, TEXT) == place / NAME
        assert sorted(path.name for path in place.iterdir()) == [".locks", NAME]
        shutil.rmtree(place)
        if not killed:
            break
    assert not killed, "the last writer got through"
    assert len(outcomes) > 10 and not outcomes[0] and outcomes[-1]


class Flaky:
    """A function that fails a number of times before it works."""

    def __init__(self, function: Callable[..., object], code: int, failures: int) -> None:
        self.function, self.code, self.failures, self.calls = function, code, failures, 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError(self.code, os.strerror(self.code))
        return self.function(*args, **kwargs)
