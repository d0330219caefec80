"""Warmups whose kernels cannot all be written: what is not on disk, verified, is not ready, and is named."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fp8gemm
from fp8gemm import settings
from fp8gemm.ahead import warming
from fp8gemm.ahead.kernels import Demand
from fp8gemm.ahead.warming import NOT_REPLACED, Warmup
from fp8gemm.cache import store
from fp8gemm.cache.entry import SIZE_LIMITS
from fp8gemm.cli.exits import Exit
from fp8gemm.errors import IncompleteWarmupError
from fp8gemm.jit import build as build_module
from fp8gemm.jit.compiler import CompileResult
from tests.jit import children

ROOT = Path(__file__).resolve().parents[2]
COUNT = 8

Tiny = Callable[[int], Demand]


def entries(place: Path) -> set[str]:
    """The labels of the kernels that lie in a directory; each must be whole, and nothing half-written beside them."""
    found = [path for path in place.iterdir() if path.name != ".locks"]
    assert not [path.name for path in found if path.name.startswith(".")]
    assert all({file.name for file in path.iterdir()} == set(SIZE_LIMITS) for path in found)
    return {path.name.rsplit(".", 1)[0] for path in found}


def of_tmpfs(options: str) -> Callable[[Path], object]:
    def fill(cache: Path) -> None:
        children.own_mounts()
        children.mount_small(cache, options)

    return fill


def of_files(cache: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def closed_midway(cache: Path) -> None:
    real, calls = build_module.compile_program, iter(range(COUNT))

    def closing(*args: Any, **rest: Any) -> CompileResult:
        if next(calls) == 3:
            cache.chmod(0o555)
        return real(*args, **rest)

    build_module.compile_program = closing


ROOM: dict[str, Callable[[Path], object]] = {
    "little space": of_tmpfs("size=64k"),
    "few inodes": of_tmpfs("nr_inodes=20"),
    "small files": of_files,
    "closed midway": closed_midway,
}


@pytest.mark.parametrize("room", ROOM)
@pytest.mark.usefixtures("compile_quickly")
def test_what_is_not_on_disk_is_not_ready_and_memory_is_no_hit(cache: Path, tiny: Tiny, room: str) -> None:
    if "tmpfs" in ROOM[room].__qualname__:
        children.require_mounts()

    def work() -> tuple[Warmup, Warmup, set[str], list[str]]:
        warnings.simplefilter("ignore")
        cache.mkdir(0o700)
        ROOM[room](cache)
        first = warming.make_ready(tiny(COUNT), jobs=1)
        there = entries(cache)
        try:
            second = warming.make_ready(tiny(COUNT), jobs=1)
        except fp8gemm.errors.CacheError:  # by now nothing can be written: a refusal, as ever
            second = warming.check_ready(tiny(COUNT))
        return first, second, there, sorted(entries(cache))

    first, second, there, in_the_end = children.run(work)
    asked = {request.label for request in tiny(COUNT).requests}
    for done in (first, second):
        assert done.missing and {each.label for each in done.missing} == asked - there
        assert done.kernels == COUNT == done.compiled + done.hits + len(done.missing)
    assert (first.compiled, first.hits) == (len(there), 0)
    assert (second.compiled, second.hits) == (0, len(there)) and in_the_end == sorted(there)
    assert str(first).startswith(f"{len(there)} of {COUNT} kernels are ready in {cache}")


@pytest.mark.skipif(not os.access("/sys/kernel", os.W_OK), reason="/sys/kernel does not claim to be writable here")
@pytest.mark.usefixtures("compile_quickly")
def test_a_directory_that_only_claims_to_be_writable(tiny: Tiny) -> None:
    with settings.scope(cache_dirs=(Path("/sys/kernel"),)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = warming.make_ready(tiny(2))
    assert (done.compiled, done.hits, len(done.missing)) == (0, 0, 2)


@pytest.fixture
def full() -> Iterator[pytest.MonkeyPatch]:
    """A disk that takes nothing until this is undone."""

    def publish(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "publish_directory", publish)
        yield patch


@pytest.mark.filterwarnings("ignore:fp8gemm kernel cache")
@pytest.mark.usefixtures("compile_quickly")
def test_once_there_is_room_the_same_process_writes_what_it_has_in_memory(
    cache: Path, tiny: Tiny, full: pytest.MonkeyPatch
) -> None:
    assert len(warming.make_ready(tiny(3)).missing) == 3 and entries(cache) == set()
    full.undo()
    done = warming.make_ready(tiny(3))
    assert (done.compiled, done.missing, len(entries(cache))) == (3, (), 3)


@pytest.mark.filterwarnings("ignore:fp8gemm kernel cache")
@pytest.mark.usefixtures("compile_quickly")
def test_a_kernel_that_could_not_be_compiled_again_is_told_although_one_is_there(
    cache: Path, tiny: Tiny, request: pytest.FixtureRequest
) -> None:
    warming.make_ready(tiny(2))
    request.getfixturevalue("full")
    done = warming.make_ready(tiny(2), again=True)
    assert (done.compiled, done.hits, len(entries(cache))) == (0, 0, 2)
    assert [each.problem for each in done.missing] == [NOT_REPLACED] * 2 and NOT_REPLACED in done.lack()


@pytest.mark.filterwarnings("ignore:fp8gemm kernel cache")
@pytest.mark.usefixtures("compile_quickly", "full")
def test_the_function_raises_and_names_them(cache: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "demand", lambda *_: tiny(30))
    with pytest.raises(IncompleteWarmupError, match="30 of 30 kernels are not ready") as caught:
        fp8gemm.warmup([(128, 128)])
    assert len(caught.value.missing) == 30 and "\n" not in str(caught.value)
    assert "tiny-8 and 22 more" in str(caught.value) and "tiny-9" not in str(caught.value)
    assert caught.value.missing[0].startswith("tiny-1.") and len(caught.value.missing[0]) == len("tiny-1.") + 64


@pytest.mark.usefixtures("compile_quickly")
def test_what_goes_while_others_are_compiled_is_missing(
    cache: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a prune: what counts is what lies there in the end."""
    real = warming.build_many

    def pruned(*args: Any, **rest: Any) -> Any:
        artifacts = real(*args, **rest)
        artifacts[1].directory.rename(cache / ".tmp-gone")
        return artifacts

    with monkeypatch.context() as patch:
        patch.setattr(warming, "build_many", pruned)
        done = warming.make_ready(tiny(3))
    assert [each.label for each in done.missing] == ["tiny-2"] and done.compiled == 2
    assert warming.make_ready(tiny(3)).compiled == 1


def test_the_command_has_an_exit_code_of_its_own_and_names_them_in_json(cache: Path) -> None:
    """With real kernels, on a disk that takes no file of more than 8 KiB."""
    words = [sys.executable, "-m", "fp8gemm", "warmup", "--quantizers", "128", "--cache-dir", str(cache), "--json"]
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
    )
    assert done.returncode == Exit.INCOMPLETE == 4, done.stderr
    told = json.loads(done.stdout)
    there = entries(cache)
    assert {each["label"] for each in told["missing"]}.isdisjoint(there)
    assert len(told["missing"]) == told["kernels"] - len(there) > 8
    assert all(len(each["key"]) == 64 and each["problem"] == "not there" for each in told["missing"])
    assert told["compiled"] == len(there) and told["hits"] == 0
    *_, last = done.stderr.splitlines()
    assert last.startswith(f"fp8gemm: {len(told['missing'])} of {told['kernels']} kernels are not ready in {cache}: ")
    assert last.endswith(f" and {len(told['missing']) - 8} more")
