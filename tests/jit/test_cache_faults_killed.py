"""Fault 1 of the cache: a writer that is killed, wherever it is."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.cache.entry import CUBIN, SIDECAR, SOURCE
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from tests.jit import children
from tests.jit.cases import ENTRY, KEY, LABEL, NAME, TEXT, Quick, told

CHANGING = {"mkdir", "open", "fchmod", "chmod", "write", "flush", "fsync", "rename", "unlink", "rmdir", "flock"}


def kill_at_call(step: int) -> None:
    """SIGKILL this process as it begins call number ``step`` of those that change what others see."""
    steps = iter(range(10_000))

    def watch(_frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in CHANGING and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


@pytest.mark.parametrize("before", ["nothing", "damaged"])
def test_fault_01_a_writer_killed_at_any_call_leaves_old_new_or_nothing(quick: Quick, cache: Path, before: str) -> None:
    good = quick()
    assert good.directory is not None
    if before == "damaged":
        (good.directory / CUBIN).write_bytes(b"old")
    else:
        shutil.rmtree(good.directory)
    start = cache.parent / "start"
    cache.rename(start)
    visible: list[str] = []
    for step in range(1000):
        shutil.copytree(start, cache)

        def work(step: int = step) -> None:
            kill_at_call(step)
            warnings.simplefilter("ignore")
            quick()

        code = children.start(work).exit_code()
        assert code in (0, -signal.SIGKILL)
        kind = visible_kind(good.directory, new=good.cubin)
        visible.append(kind)
        artifact, events = told(quick)
        assert artifact.cubin == good.cubin and artifact.directory == good.directory
        assert events == ([CacheEvent.HEALED] if kind == "old" else []), f"step {step}"
        assert (artifact.source == "disk") == (kind == "new")
        assert not list(cache.glob(".tmp-*"))
        shutil.rmtree(cache)
        if not code:
            break
    assert list(dict.fromkeys(visible)) == ["old", "nothing", "new"][before == "nothing" :]
    assert len(visible) > 20


def visible_kind(entry: Path, *, new: bytes) -> str:
    """Whether an entry is the old one, the new one, or not there; a part of one is none of these."""
    if not entry.exists():
        return "nothing"
    assert {path.name for path in entry.iterdir()} == {SOURCE, CUBIN, SIDECAR}
    cubin = (entry / CUBIN).read_bytes()
    assert cubin in (b"old", new)
    return "old" if cubin == b"old" else "new"


def test_fault_01_a_writer_killed_while_it_replaces_a_good_entry(place: Path) -> None:
    better = replace(ENTRY, cubin=b"better")
    start = place.parent / "start"
    place.rename(start)
    visible: list[bytes | None] = []
    for step in range(1000):
        shutil.copytree(start, place)

        def work(step: int = step) -> None:
            kill_at_call(step)
            Store([place]).publish(better, TEXT, replace=True)

        code = children.start(work).exit_code()
        found = Store([place]).find(LABEL, KEY)
        assert found.damaged == ()
        visible.append(found.entry and found.entry.cubin)
        with Store([place]).lock(LABEL, KEY):
            assert Store([place]).publish(better, TEXT) == place / NAME
        assert sorted(path.name for path in place.iterdir()) == [".locks", NAME]
        shutil.rmtree(place)
        if not code:
            break
    assert list(dict.fromkeys(visible)) == [ENTRY.cubin, None, b"better"]


@pytest.mark.parametrize("size", [0, 5, 1000, 3000])
def test_fault_01_a_writer_killed_in_the_middle_of_a_file(place: Path, size: int) -> None:
    """By the kernel itself, when the file has the size that the process is allowed."""
    shutil.rmtree(place / NAME)
    big = replace(ENTRY, cubin=ENTRY.cubin * 3)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        Store([place]).publish(big, TEXT)

    assert children.start(work).exit_code() == -signal.SIGXFSZ
    (left,) = place.iterdir()
    assert left.name.startswith(".tmp-") and max(path.stat().st_size for path in left.iterdir()) == size
    store = Store([place])
    assert store.find(LABEL, KEY) == Store([]).find(LABEL, KEY)
    with store.lock(LABEL, KEY):
        assert store.publish(big, TEXT) == place / NAME
    assert not left.exists()
    entry = store.find(LABEL, KEY).entry
    assert entry is not None and entry.cubin == big.cubin
