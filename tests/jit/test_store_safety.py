"""What the store refuses to read, and what it never writes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fp8gemm.cache.entry import CUBIN, SIDECAR, SOURCE, Entry
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from tests.jit.cases import ENTRY, KEY, LABEL, NAME, OTHER_KEY, TEXT, seal, snapshot, warned


def test_a_sealed_layer_is_never_written_not_even_by_root(place: Path) -> None:
    seal(place)
    store = Store([place])
    before = snapshot(place)
    assert store.find(LABEL, KEY).entry is not None
    with warned(CacheEvent.MEMORY_ONLY):
        assert store.publish(Entry(OTHER_KEY, LABEL, b"other", {}), TEXT) is None
        with store.lock(LABEL, OTHER_KEY) as held:
            assert not held
        assert store.publish(Entry("ef" * 32, LABEL, b"other", {}), TEXT) is None
    assert snapshot(place) == before


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_write_is_refused_unless_trusted(place: Path, mode: int) -> None:
    place.chmod(mode)
    before = snapshot(place)
    store = Store([place])
    with warned(CacheEvent.REFUSED) as found:
        assert store.find(LABEL, KEY).entry is None
        assert store.publish(ENTRY, TEXT) is None
    assert f"{mode:04o}" in found[0].reason and "FP8GEMM_TRUSTED_DIRS" in found[0].reason
    assert snapshot(place) == before
    with warned():
        assert Store([place], trusted=[place]).find(LABEL, KEY).entry is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_somebody_else_is_refused_unless_trusted(place: Path) -> None:
    os.chown(place, 12345, 12345)
    with warned(CacheEvent.REFUSED) as found:
        assert Store([place]).find(LABEL, KEY).entry is None
    assert "12345" in found[0].reason
    os.chown(place, 0, 0)
    os.chown(place / NAME / CUBIN, 12345, 12345)
    (damage,) = Store([place]).find(LABEL, KEY).damaged
    assert "12345" in damage.reason
    assert Store([place], trusted=[place]).find(LABEL, KEY).entry is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_layer_sealed_by_root_serves_another_user(place: Path) -> None:
    program = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fp8gemm.cache.store import Store
os.setgid(12345)
os.setuid(12345)
print(Store([Path(sys.argv[2])]).find(*sys.argv[3:]).entry is not None)
"""
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory(dir="/tmp") as public:  # pytest's own directories are closed to other users
        os.chmod(public, 0o755)
        sealed = Path(shutil.copytree(place, Path(public, "sealed")))
        seal(sealed)
        command = [sys.executable, "-c", program, str(root), str(sealed), LABEL, KEY]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr


def test_a_symlink_to_a_directory_is_refused_unless_trusted(place: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(place)
    with warned(CacheEvent.REFUSED) as found:
        assert Store([link]).find(LABEL, KEY).entry is None
    assert "symlink" in found[0].reason
    for trusted in (link, place):
        assert Store([link], trusted=[trusted]).find(LABEL, KEY).entry is not None
    below = tmp_path / "elsewhere"
    below.symlink_to(tmp_path)
    assert Store([below / "cache"]).find(LABEL, KEY).entry is not None, "a symlink further up is the user's own affair"


@pytest.mark.parametrize("kind", ["symlink", "FIFO", "file"])
@pytest.mark.parametrize("trusted", [False, True])
def test_an_entry_that_is_no_directory_is_refused_without_waiting(place: Path, kind: str, trusted: bool) -> None:
    elsewhere = place.parent / "elsewhere"
    (place / NAME).rename(elsewhere)
    make(kind, place / NAME, elsewhere)
    store = Store([place], trusted=[place] if trusted else [])
    (damage,) = store.find(LABEL, KEY).damaged
    assert kind in damage.reason
    with warned(CacheEvent.HEALED):
        store.quarantine(LABEL, KEY, damage)
    assert store.publish(ENTRY, TEXT) == place / NAME
    assert store.find(LABEL, KEY).entry is not None
    assert (elsewhere / CUBIN).exists(), "what the symlink leads to is not ours to touch"


@pytest.mark.parametrize("kind", ["symlink", "FIFO", "directory"])
@pytest.mark.parametrize("file", [SOURCE, CUBIN, SIDECAR])
def test_a_file_that_is_no_regular_file_is_refused_without_waiting(place: Path, kind: str, file: str) -> None:
    elsewhere = place.parent / "elsewhere"
    (place / NAME / file).rename(elsewhere)
    make(kind, place / NAME / file, elsewhere)
    (damage,) = Store([place]).find(LABEL, KEY).damaged
    assert kind in damage.reason


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_what_we_make_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    place = tmp_path / "a" / "b" / "cache"
    before = os.umask(mask)
    try:
        store = Store([place])
        with store.lock(LABEL, KEY) as held:
            assert held
            store.publish(ENTRY, TEXT)
    finally:
        os.umask(before)
    for path in [tmp_path / "a", *(tmp_path / "a").rglob("*")]:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    assert Store([place]).find(LABEL, KEY).entry is not None


def make(kind: str, path: Path, target: Path) -> None:
    if kind == "symlink":
        path.symlink_to(target)
    elif kind == "FIFO":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir(mode=0o700)
    else:
        path.write_text("")
