"""Faults 14 and 15 of the cache: directories that others could have filled, and entries that are no files."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cache.entry import CUBIN, SIDECAR, SOURCE
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from fp8gemm.jit.build import Artifact, build
from tests.jit import children
from tests.jit.cases import Forget, Quick, RequestFor, seal, snapshot, told, warned

# 14: code from somewhere else

Hostile = Callable[[Path, Path], Path]


def group_writable(place: Path, entry: Path) -> Path:
    place.chmod(0o770)
    return place


def world_writable(place: Path, entry: Path) -> Path:
    place.chmod(0o707)
    return place


def sticky(place: Path, entry: Path) -> Path:
    place.chmod(0o1777)
    return place


def owned_by_another(place: Path, entry: Path) -> Path:
    os.chown(place, children.OTHER_USER, children.OTHER_USER)
    return place


def symlink(place: Path, entry: Path) -> Path:
    link = place.parent / "link"
    link.symlink_to(place)
    return link


def below_a_symlink_and_writable(place: Path, entry: Path) -> Path:
    place.chmod(0o777)
    above = place.parent / "above"
    above.symlink_to(place.parent)
    return above / place.name


def below_a_symlink_and_owned_by_another(place: Path, entry: Path) -> Path:
    owned_by_another(place, entry)
    above = place.parent / "above"
    above.symlink_to(place.parent)
    return above / place.name


LAYERS = [
    (group_writable, "0770"),
    (world_writable, "0707"),
    (sticky, "1777"),
    (symlink, "a symlink"),
    (below_a_symlink_and_writable, "0777"),
    pytest.param(owned_by_another, "user 12345", marks=children.as_root),
    pytest.param(below_a_symlink_and_owned_by_another, "user 12345", marks=children.as_root),
]


@pytest.fixture
def forged(quick: Quick, cache: Path, forget: Forget) -> Artifact:
    """A kernel with the right answer; in the cache lies another one under its key, all checksums right."""
    good = quick()
    found = Store([cache]).find("tiny-7", good.key).entry
    assert found is not None and good.directory is not None
    source = (good.directory / SOURCE).read_text()
    Store([cache]).publish(replace(found, cubin=b"\x7fELF evil"), source, replace=True)
    assert quick().cubin == b"\x7fELF evil"
    forget()
    return good


@pytest.mark.parametrize(("make", "reason"), LAYERS)
def test_fault_14_a_directory_that_others_could_have_filled_is_refused(
    forged: Artifact,
    cache: Path,
    include: Path,
    request_for: RequestFor,
    make: Hostile,
    reason: str,
) -> None:
    assert forged.directory is not None
    place = make(cache, forged.directory)
    before = snapshot(cache)
    with settings.scope(cache_dirs=(place,)), warned(CacheEvent.REFUSED) as found:
        artifacts = [build(request_for(value), include_dir=include) for value in (7, 8)]
    assert [each.source for each in artifacts] == ["compiled"] * 2 and artifacts[0].cubin == forged.cubin
    assert {each.directory for each in artifacts} == {None}
    assert reason in found[0].reason and f"list {place} in FP8GEMM_TRUSTED_DIRS" in found[0].reason
    assert snapshot(cache) == before, "nothing is written there either"
    with settings.scope(cache_dirs=(place,), trusted_dirs=(place,)), warned():
        assert build(request_for(7), include_dir=include).cubin == b"\x7fELF evil"


@pytest.mark.parametrize("part", ["entry", "file"])
@pytest.mark.parametrize("how", ["writable", pytest.param("owned", marks=children.as_root)])
def test_fault_14_an_entry_that_others_could_have_written_is_refused(
    forged: Artifact, quick: Quick, part: str, how: str
) -> None:
    assert forged.directory is not None
    path = forged.directory if part == "entry" else forged.directory / CUBIN
    if how == "writable":
        path.chmod(0o777)
    else:
        os.chown(path, children.OTHER_USER, -1)
    artifact, events = told(quick)
    assert (artifact.cubin, events) == (forged.cubin, [CacheEvent.HEALED])
    assert told(quick)[0].source == "disk"


@children.as_root
@pytest.mark.parametrize(
    ("owner", "how", "served"),
    [(0, "sealed", True), (0, "own", True), (children.THIRD_USER, "sealed", False)],
    ids=["sealed by root", "root's own", "sealed by somebody else"],
)
def test_fault_14_what_root_has_made_serves_every_user_and_what_others_have_made_does_not(
    quick: Quick,
    cache: Path,
    include: Path,
    request_for: RequestFor,
    open_to_all: Path,
    owner: int,
    how: str,
    served: bool,
) -> None:
    quick()
    place, headers = open_to_all / "cache", open_to_all / "include"
    shutil.copytree(cache, place)
    shutil.copytree(include, headers)
    if how == "sealed":
        seal(place)
    else:
        for path in [place, *place.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    for path in [place, *place.rglob("*")]:
        os.chown(path, owner, owner)
    before = snapshot(place)

    def work() -> tuple[str, list[CacheEvent]]:
        children.become(children.OTHER_USER)
        with settings.scope(cache_dirs=(place,)):
            artifact, events = told(lambda: build(request_for(7), include_dir=headers))
        return artifact.source, events

    assert children.run(work) == (("disk", []) if served else ("compiled", [CacheEvent.REFUSED]))
    assert snapshot(place) == before


# 15: what is no file


def device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which never ends


def tty(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(5, 0))


def socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "make",
    [
        socket,
        fifo,
        link_to_a_device,
        pytest.param(device, marks=children.as_root),
        pytest.param(tty, marks=children.as_root),
    ],
)
@pytest.mark.parametrize("part", ["", SOURCE, CUBIN, SIDECAR])
def test_fault_15_what_is_no_file_is_refused_without_waiting(
    quick: Quick, make: Callable[[Path], None], part: str
) -> None:
    good = quick()
    assert good.directory is not None
    path = good.directory / part
    shutil.rmtree(path) if not part else path.unlink()
    try:
        make(path)
    except PermissionError as error:
        pytest.skip(f"this machine lets nobody make one: {error}")
    started = time.monotonic()
    artifact, events = told(quick)
    assert time.monotonic() - started < 5
    assert (artifact.source, artifact.cubin, events) == ("compiled", good.cubin, [CacheEvent.HEALED])
    assert told(quick)[0].source == "disk"
