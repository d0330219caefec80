"""Faults 13, 17, 20 and 23 of the cache: where it lies, and what time it is."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cache.entry import CUBIN
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from fp8gemm.errors import InputError
from fp8gemm.jit.build import build
from tests.jit import children
from tests.jit.cases import Forget, Quick, RequestFor, snapshot, told, warned

# 13: nowhere to write to


@pytest.mark.parametrize("home", [None, "", "relative", "home-that-is-closed"])
def test_fault_13_an_unknown_user_without_a_home_has_memory_alone(
    open_to_all: Path, include: Path, request_for: RequestFor, compile_quickly: list[str], home: str | None
) -> None:
    if os.geteuid() and home == "home-that-is-closed":
        pytest.skip("only root can have a directory that this user cannot write")
    headers, working = open_to_all / "include", open_to_all / "working"
    shutil.copytree(include, headers)
    working.mkdir()
    working.chmod(0o777)
    (open_to_all / "home-that-is-closed").mkdir(mode=0o755)

    def work() -> tuple[object, ...]:
        os.chdir(working)
        for name in [name for name in os.environ if name.startswith(("FP8GEMM_", "XDG_")) or name == "HOME"]:
            del os.environ[name]
        if home is not None:
            os.environ["HOME"] = str(open_to_all / home) if home.startswith("home-") else home
        if os.geteuid() == 0:
            children.become(54321)  # nobody knows this user's name, and it owns nothing
        dirs = settings.from_environment(os.environ).cache_dirs
        with settings.scope(cache_dirs=dirs):
            artifacts, events = told(lambda: [build(request_for(value), include_dir=headers) for value in (7, 8, 7)])
        return [each.source for each in artifacts], {each.directory for each in artifacts}, events

    assert children.run(work) == (["compiled", "compiled", "memory"], {None}, [CacheEvent.MEMORY_ONLY])
    assert list(working.iterdir()) == []


@children.as_root
def test_fault_13_a_home_that_nobody_knows_is_no_path() -> None:
    """``~`` must not become the current directory."""

    def work() -> str:
        os.environ.pop("HOME", None)
        children.become(54321)
        with pytest.raises(InputError) as caught:
            settings.from_environment({"FP8GEMM_CACHE_DIR": "~/kernels"})
        return str(caught.value)

    assert "FP8GEMM_CACHE_DIR" in children.run(work)


# 17: odd names

ODD = [
    "with spaces",
    "a;touch x",
    "$(touch x)",
    "`touch x`",
    "$HOME",
    "é 中文 🙂",
    "line\nbreak",
    "-rf",
    "*?[a]",
    "'\"\\",
    "~",
    os.fsdecode(b"\xff\xfe"),
]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_fault_17_odd_paths_work(
    tmp_path: Path,
    include: Path,
    request_for: RequestFor,
    compile_quickly: list[str],
    forget: Forget,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    place, headers = tmp_path / name / "cache", tmp_path / "headers" / name
    shutil.copytree(include, headers)

    def ask() -> str:
        forget()
        return build(request_for(7), include_dir=headers).source

    with settings.scope(cache_dirs=settings.from_environment({"FP8GEMM_CACHE_DIR": str(place)}).cache_dirs):
        with warned():
            assert [ask(), ask()] == ["compiled", "disk"]
        (file,) = place.glob(f"tiny-7.*/{CUBIN}")
        file.write_bytes(b"")
        with warned(CacheEvent.HEALED) as found:
            assert [ask(), ask()] == ["compiled", "disk"]
    assert found[0].place == file.parent and name in str(found[0])
    assert list(working.iterdir()) == []


# 20: the clock


@pytest.mark.parametrize("years", [-10, 10])
def test_fault_20_a_clock_moved_by_ten_years_changes_nothing(
    quick: Quick, cache: Path, request_for: RequestFor, include: Path, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    good = quick()
    seconds = years * 365 * 86400
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + seconds * 10**9)
    with warned():
        assert quick().source == "disk"
        other = build(request_for(8), include_dir=include)
        assert other.source == "compiled" and other.directory is not None
    for offset in (-2 * seconds, 0):  # files of the past and of the future
        for path in [cache, *cache.rglob("*"), *include.rglob("*")]:
            os.utime(path, (real() + offset, real() + offset))
        before = snapshot(cache)
        with warned():
            again = quick()
            assert (again.source, again.cubin, again.key) == ("disk", good.cubin, good.key)
            assert build(request_for(8), include_dir=include).key == other.key
        assert snapshot(cache) == before
    with Store([cache], lock_timeout_s=0.2).lock("tiny-7", good.key) as held, warned(CacheEvent.UNLOCKED):
        started = time.monotonic()
        with Store([cache], lock_timeout_s=0.2).lock("tiny-7", good.key) as also:
            assert held and not also and time.monotonic() - started < 10


# 23: another place, user and machine


@children.as_root
def test_fault_23_a_cache_hits_at_another_path_for_another_user_on_another_machine(
    quick: Quick, cache: Path, include: Path, request_for: RequestFor, open_to_all: Path
) -> None:
    good = quick()
    place, headers = open_to_all / "moved" / "kernels", open_to_all / "elsewhere"
    shutil.copytree(cache, place)
    shutil.copytree(include, headers)
    for path in [place.parent, *place.parent.rglob("*")]:
        os.chown(path, children.OTHER_USER, children.OTHER_USER)

    def work() -> tuple[object, ...]:
        children.other_machine("another.example")
        children.become(children.OTHER_USER)
        os.environ.clear()
        os.environ.update(HOME="/nonexistent", LANG="tr_TR.UTF-8", TZ="Asia/Tokyo", PATH="/bin")
        os.chdir("/")
        sys.modules["cuda"] = sys.modules["filelock"] = None  # type: ignore[assignment]
        with settings.scope(cache_dirs=(place,), jit="error"):
            artifact, events = told(lambda: build(request_for(7), include_dir=headers))
        return os.uname().nodename, artifact.source, artifact.key, artifact.cubin, events

    assert children.run(work) == ("another.example", "disk", good.key, good.cubin, [])
