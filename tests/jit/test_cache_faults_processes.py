"""Faults 6, 7, 8, 10 and 21 of the cache: many processes at once, some of them without locks, stopped or killed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fp8gemm.cache import files
from fp8gemm.cache.entry import CUBIN
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from fp8gemm.jit import build as build_module
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.build import build
from fp8gemm.jit.compiler import CompileResult
from tests.jit import children
from tests.jit.cases import ENTRY, KEY, LABEL, NAME, TEXT, Python, Quick, RequestFor, told, warned

MANY = 32


def test_fault_06_thirty_two_processes_and_one_cold_key(cache: Path, python: Python, tmp_path: Path) -> None:
    noted = tmp_path / "compiles"
    program = f"""
        import hashlib, os, sys, time
        import fp8gemm.jit.build as module
        real = module.compile_program
        def noted(*args, **kwargs):
            descriptor = os.open({str(noted)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, b"%d\\n" % os.getpid())
            os.close(descriptor)
            time.sleep(0.2)  # long enough for all the others to come and wait
            return real(*args, **kwargs)
        module.compile_program = noted
        assert "torch" not in sys.modules, "a kernel is built without it"
        print("ready", flush=True)
        sys.stdin.readline()
        artifact = build(request, include_dir=include)
        print(artifact.source, artifact.key, hashlib.sha256(artifact.cubin).hexdigest())
    """
    processes = [python(program) for _ in range(MANY)]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n", process.communicate()
        ended = [process.communicate("go\n", timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * MANY, ended
    assert [errors for _, errors in ended] == [""] * MANY
    sources, keys, cubins = zip(*(output.split() for output, _ in ended), strict=True)
    assert sorted(sources) == ["compiled"] + ["disk"] * (MANY - 1)
    assert len(noted.read_text().split()) == 1
    assert len(set(keys)) == len(set(cubins)) == 1
    assert not list(cache.glob(".tmp-*")) and not list(cache.glob(".quarantine-*"))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS], ids=errno.errorcode.get)
def test_fault_07_without_locks_some_compile_twice_and_nothing_fails(
    quick: Quick, cache: Path, monkeypatch: pytest.MonkeyPatch, compiled: CompileResult, code: int
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(build_module, "compile_program", lambda *_, **__: time.sleep(0.2) or compiled)
    ready, go = os.pipe()

    def work() -> tuple[object, ...]:
        os.close(go)
        os.read(ready, 1)
        artifact, events = told(quick)
        return artifact.cubin, artifact.source, artifact.directory, events

    processes = [children.start(work) for _ in range(4)]
    os.close(go)
    results = [process.result() for process in processes]
    os.close(ready)
    (place,) = cache.glob("tiny-7.*")
    for cubin, source, directory, events in results:
        assert cubin == compiled.cubin and directory == place and source in ("compiled", "disk")
        # Where there is no flock at all, filelock makes do with a file that is there or not.
        assert events == [CacheEvent.UNLOCKED] or (code == errno.ENOSYS and not events)
    assert not list(cache.glob(".tmp-*"))
    assert told(quick)[0].source == "disk"


def test_fault_08_the_loser_of_the_race_uses_its_own_bytes(
    quick: Quick, cache: Path, monkeypatch: pytest.MonkeyPatch, compiled: CompileResult
) -> None:
    found = Store([cache]).find("tiny-7", quick().key).entry
    assert found is not None
    shutil.rmtree(cache)
    winner = replace(found, cubin=b"the winner's")

    def compile_slowly(*_: object, **__: object) -> CompileResult:
        assert Store([cache]).publish(winner, TEXT)
        return replace(compiled, cubin=b"my own")

    monkeypatch.setattr(build_module, "compile_program", compile_slowly)
    artifact, events = told(quick)
    assert (artifact.source, artifact.cubin, events) == ("compiled", b"my own", [])
    assert artifact.directory is not None
    assert (artifact.directory / CUBIN).read_bytes() == b"the winner's"
    assert not list(cache.glob(".tmp-*"))
    assert quick().cubin == b"the winner's", "the next process is served what is there"


@pytest.fixture
def holder(
    quick: Quick, monkeypatch: pytest.MonkeyPatch, compiled: CompileResult
) -> Iterator[tuple[children.Child, int]]:
    """A process that compiles, and so holds the lock, until it reads from a pipe; and where to write into that."""
    locked, say_locked = os.pipe()
    wait, go_on = os.pipe()

    def stuck(*_: object, **__: object) -> CompileResult:
        os.write(say_locked, b"!")
        os.read(wait, 1)
        return compiled

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "compile_program", stuck)
        process = children.start(lambda: told(lambda: summary(quick())))
    assert os.read(locked, 1) == b"!"
    yield process, go_on
    for descriptor in (locked, say_locked, wait, go_on):
        os.close(descriptor)


def summary(artifact: Artifact) -> tuple[str, bytes]:
    return artifact.source, artifact.cubin


def test_fault_10_who_waits_goes_on_at_once_when_the_holder_is_killed(
    holder: tuple[children.Child, int], quick: Quick, compiled: CompileResult
) -> None:
    process, _ = holder
    waiter = children.start(lambda: told(lambda: summary(quick())))
    time.sleep(0.3)
    started = time.monotonic()
    process.kill()
    assert waiter.result() == (("compiled", compiled.cubin), [])
    assert time.monotonic() - started < 10, "the lock's own time limit is 30 s"
    assert process.exit_code() == -signal.SIGKILL


def test_fault_10_who_waits_for_a_stopped_holder_compiles_for_itself(
    holder: tuple[children.Child, int],
    quick: Quick,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiled: CompileResult,
) -> None:
    process, go_on = holder
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    monkeypatch.setattr(Store, "from_settings", lambda now: Store(now.cache_dirs, lock_timeout_s=0.3))
    started = time.monotonic()
    artifact, events = told(quick)
    assert 0.3 <= time.monotonic() - started < 10
    assert (artifact.source, events) == ("compiled", [CacheEvent.UNLOCKED])
    assert artifact.directory is not None and quick().source == "disk"
    os.kill(process.pid, signal.SIGCONT)
    os.write(go_on, b"!")
    assert process.result() == (("compiled", compiled.cubin), []), "it lost the race, and nothing else"
    assert [path.name for path in cache.iterdir() if path.name != ".locks"] == [artifact.directory.name]


# 21: entries that disappear while others read them


def by_renaming(place: Path) -> None:
    """As `fp8gemm cache prune` and `clear` remove an entry."""
    descriptor = os.open(place, os.O_RDONLY)
    files.remove_whole(NAME, inside=descriptor)
    os.close(descriptor)


def by_hand(place: Path) -> None:
    shutil.rmtree(place / NAME)


@pytest.mark.parametrize("remove", [by_renaming, by_hand])
def test_fault_21_an_entry_that_is_removed_while_it_is_read_is_there_or_not(
    place: Path, remove: Callable[[Path], None]
) -> None:
    foreign = [place / "notes.txt", place / "project" / "kernel.cubin", place / f".tmp-{NAME}.txt"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("keep")

    def work() -> int:
        times, end = 0, time.monotonic() + 1.5
        while time.monotonic() < end:
            remove(place)
            with Store([place]).lock(LABEL, KEY):
                assert Store([place]).publish(ENTRY, TEXT) == place / NAME
            times += 1
            time.sleep(0.002)
        return times

    process = children.start(work)
    hits = misses = 0
    store, end = Store([place]), time.monotonic() + 1.3
    with warned():
        while time.monotonic() < end:
            found = store.find(LABEL, KEY)
            # A process that removes files one by one may rest in between for longer than a reader waits.
            assert found.damaged == () or (remove is by_hand and "missing" in found.damaged[0].reason)
            assert found.entry is None or found.entry.cubin == ENTRY.cubin
            hits, misses = hits + bool(found.entry), misses + (not found.entry)
    assert process.result() > 3
    assert hits > 3 and misses > 0
    assert [path.read_text() for path in foreign] == ["keep"] * 3


def test_fault_21_who_has_loaded_a_kernel_keeps_it_when_the_cache_is_cleared(
    quick: Quick, cache: Path, request_for: RequestFor, include: Path
) -> None:
    first = quick()
    shutil.rmtree(cache)
    again, events = told(lambda: build(request_for(7), include_dir=include))
    assert (again.source, again.cubin, events) == ("memory", first.cubin, [])
    other, events = told(lambda: build(request_for(8), include_dir=include))
    assert (other.source, events) == ("compiled", [])
    assert other.directory is not None and other.directory.is_dir(), "the directory is made again"


def test_fault_21_a_cache_that_is_cleared_again_and_again_while_processes_build(
    quick: Quick, cache: Path, compiled: CompileResult
) -> None:
    """By hand: what is found in part is compiled again, and what cannot be written then is kept in memory."""

    def work() -> tuple[set[bytes], list[CacheEvent]]:
        end = time.monotonic() + 1.5
        cubins: set[bytes] = set()

        def ask() -> None:
            while time.monotonic() < end:
                cubins.add(quick().cubin)

        return cubins, told(ask)[1]

    processes = [children.start(work) for _ in range(2)]
    end = time.monotonic() + 1.3
    while time.monotonic() < end:
        shutil.rmtree(cache, ignore_errors=True)
        time.sleep(0.01)
    allowed = {CacheEvent.HEALED, CacheEvent.MEMORY_ONLY, CacheEvent.UNLOCKED}
    for process in processes:
        cubins, events = process.result()
        assert cubins == {compiled.cubin} and set(events) <= allowed
