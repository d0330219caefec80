"""Faults 9, 11 and 12 of the cache: file systems that are sick, full or read-only."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings, writing
from fp8gemm.cache import trust
from fp8gemm.cache.entry import CUBIN
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.jit.build import build
from tests.jit import children
from tests.jit.cases import Quick, RequestFor, seal, snapshot, told


class Wrapped:
    """An open file of which single methods can be replaced."""

    def __init__(self, file: Any) -> None:
        self._file, self.read, self.write, self.flush = file, file.read, file.write, file.flush

    def __enter__(self) -> Wrapped:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


PASSING = [errno.ESTALE, errno.EBUSY, errno.EIO, errno.EINTR]


def sick(monkeypatch: pytest.MonkeyPatch, call: str, code: int, times: int) -> list[str]:
    """Let the first calls to read from a file, or to rename one, fail; the list grows with every call."""
    calls: list[str] = []

    def failing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) <= times:
                raise OSError(code, os.strerror(code))
            return function(*args, **kwargs)

        return instead

    if call == "rename":
        monkeypatch.setattr(os, "rename", failing("rename", os.rename))
        return calls

    def opened(*args: Any) -> Wrapped:
        file = Wrapped(open(*args))  # noqa: SIM115
        file.read = failing("read", file.read)
        return file

    monkeypatch.setattr(trust, "open", opened, raising=False)
    return calls


@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["read", "rename"])
@pytest.mark.parametrize("times", [2, 10_000])
def test_fault_09_an_error_is_asked_again_and_then_done_without(
    quick: Quick, cache: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, times: int
) -> None:
    if call == "read":
        good = quick()
    with monkeypatch.context() as patch:
        calls = sick(patch, call, code, times)
        artifact, events = told(quick)
    lasting = times > 2
    assert artifact.source == ("disk" if call == "read" and not lasting else "compiled")
    assert events == ([CacheEvent.UNREADABLE if call == "read" else CacheEvent.MEMORY_ONLY] if lasting else [])
    assert len(calls) <= 4 * (2 if call == "read" else 1), "before the lock and under it"
    assert not list(cache.glob(".tmp-*"))
    if call == "read":
        after = told(quick)
        assert after[0].source == "disk" and after[0].cubin == good.cubin and after[1] == [], "it was not damaged"
    else:
        assert artifact.directory == (None if lasting else quick().directory)


def test_fault_09_a_file_that_the_kernel_really_cannot_read(quick: Quick) -> None:
    """EIO, as the memory of a process gives it at the address 0."""
    children.require_mounts()
    good = quick()
    assert good.directory is not None
    cubin = good.directory / CUBIN

    def work() -> tuple[str, bytes, list[CacheEvent]]:
        children.own_mounts()
        children.mount_file(Path("/proc/self/mem"), cubin)
        artifact, events = told(quick)
        return artifact.source, artifact.cubin, events

    assert children.run(work) == ("compiled", good.cubin, [CacheEvent.UNREADABLE])
    assert told(quick)[0].source == "disk"


# 11: a disk that is full

FULL = [errno.ENOSPC, errno.EDQUOT]


def failing_at(monkeypatch: pytest.MonkeyPatch, call: str, code: int, number: int) -> None:
    """Let the call number ``number`` to write, fsync or rename fail, and all after it: the disk stays full."""
    calls = iter(range(10_000))

    def full(function: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            if next(calls) >= number:
                raise OSError(code, os.strerror(code))
            return function(*args, **kwargs)

        return instead

    if call != "write":
        monkeypatch.setattr(os, call, full(getattr(os, call)))
        return

    def opened(*args: Any) -> Wrapped:
        file = Wrapped(open(*args))  # noqa: SIM115
        file.write = full(file.write)
        return file

    monkeypatch.setattr(writing, "open", opened, raising=False)


@pytest.mark.parametrize("code", FULL, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("call", "number"),
    [("rename", 0), *(("write", number) for number in range(3)), *(("fsync", number) for number in range(4))],
)
def test_fault_11_a_full_disk_leaves_memory_and_no_part_of_an_entry(
    quick: Quick, cache: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: int
) -> None:
    with monkeypatch.context() as patch:
        failing_at(patch, call, code, number)
        artifact, events = told(quick)
    assert (artifact.source, artifact.directory, events) == ("compiled", None, [CacheEvent.MEMORY_ONLY])
    assert [path.name for path in cache.iterdir()] == [".locks"]
    assert quick().directory is not None, "there is room again"


def test_fault_11_a_disk_that_is_full_for_the_name_alone_has_the_whole_entry(
    quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last fsync, of the cache directory, comes when the entry is complete."""
    with monkeypatch.context() as patch:
        failing_at(patch, "fsync", errno.ENOSPC, 4)
        assert told(quick)[1] == [CacheEvent.MEMORY_ONLY]
    assert told(quick)[0].source == "disk"


@pytest.mark.parametrize("room", ["size=4k", "size=8k", *(f"nr_inodes={number}" for number in range(2, 7))])
def test_fault_11_a_disk_that_is_really_full(quick: Quick, cache: Path, room: str) -> None:
    children.require_mounts()
    expected = quick().cubin

    def work() -> tuple[object, ...]:
        children.own_mounts()
        children.mount_small(cache, room)
        artifact, events = told(quick)
        left = {path.name for path in cache.iterdir()} - {".locks"}
        return artifact.cubin, artifact.source, artifact.directory, set(events), left

    cubin, source, directory, events, left = children.run(work)
    assert (cubin, source, directory, left) == (expected, "compiled", None, set())
    assert CacheEvent.MEMORY_ONLY in events and events <= {CacheEvent.MEMORY_ONLY, CacheEvent.UNLOCKED}


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_fault_11_a_file_that_may_not_grow(quick: Quick, cache: Path, size: int) -> None:
    def work() -> tuple[object, ...]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        artifact, events = told(quick)
        return artifact.source, artifact.directory, events

    assert children.run(work) == ("compiled", None, [CacheEvent.MEMORY_ONLY])
    assert [path.name for path in cache.iterdir()] == [".locks"]


# 12: a cache that is read only

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"mkdir", "rename", "remove", "rmdir", "chmod", "chown", "link", "symlink", "truncate", "utime", "setxattr"}


def watched() -> list[str]:
    """What this process does from now on to change any file system, by Python's own audit; it cannot be ended."""
    found: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and arguments[2] & WRITING:
            found.append(f"open {arguments[0]}")
        elif event.removeprefix("os.") in CHANGES:
            found.append(event)

    sys.addaudithook(hook)
    return found


@pytest.mark.parametrize("how", ["sealed", "sealed, another user", "mounted read-only"])
def test_fault_12_a_read_only_cache_gives_hits_and_is_not_written(
    quick: Quick, request_for: RequestFor, include: Path, cache: Path, open_to_all: Path, how: str
) -> None:
    if how == "mounted read-only":
        children.require_mounts()
    elif "user" in how and os.geteuid():
        pytest.skip("only root can act as another user")
    expected = quick().cubin
    place, headers = open_to_all / "cache", open_to_all / "include"
    shutil.copytree(cache, place)
    shutil.copytree(include, headers)
    if how != "mounted read-only":
        seal(place)
    before = snapshot(place)

    def work() -> tuple[object, ...]:
        if how == "mounted read-only":
            children.own_mounts()
            children.mount_read_only(place)
        elif "user" in how:
            children.become(children.OTHER_USER)
        with settings.scope(cache_dirs=(place,)):
            writes = watched()
            hit, silence = told(lambda: build(request_for(7), include_dir=headers))
            hits_wrote = list(writes)
            miss, events = told(lambda: build(request_for(8), include_dir=headers))
        return hit.source, hit.cubin, silence, hits_wrote, miss.source, miss.directory, events, writes

    hit = ("disk", expected, [], [])
    assert children.run(work) == (*hit, "compiled", None, [CacheEvent.MEMORY_ONLY], [])
    assert snapshot(place) == before


def test_fault_12_the_watch_sees_what_a_writable_cache_gets(quick: Quick) -> None:
    def work() -> list[str]:
        writes = watched()
        quick()
        return writes

    seen = children.run(work)
    assert "os.rename" in seen and "os.mkdir" in seen
    assert sum(each.startswith("open ") for each in seen) == 4, "three files and a lock"
