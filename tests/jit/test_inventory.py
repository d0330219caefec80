"""What is said of a cache directory: of every kernel, of leftovers, and of what is not ours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.cache import files
from fp8gemm.cache.access import State
from fp8gemm.cache.entry import CUBIN, SIDECAR, SIZE_LIMITS, SOURCE, Entry
from fp8gemm.cache.inventory import take_inventory
from fp8gemm.cache.store import Layer, Store
from fp8gemm.errors import CacheError
from tests.jit.caches import fill, kernel, look, name_of
from tests.jit.cases import snapshot
from tests.jit.children import OTHER_USER, as_root, become, mount_read_only, own_mounts, require_mounts, run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return fill(tmp_path / "cache", 1, 2, 3).path


def test_a_kernel_is_described_by_its_sidecar_and_its_files(place: Path) -> None:
    before = snapshot(place)
    inventory = look(place)
    assert snapshot(place) == before
    assert [each.name for each in inventory.kernels] == sorted(map(name_of, (1, 2, 3)))
    first = next(each for each in inventory.kernels if each.label == "tiny-1")
    assert (first.key, first.registers, first.spill_bytes, first.nvrtc_version) == (kernel(1).key, 168, 8, "12.9")
    assert first.metadata["config"] == {"n": 7168, "k": 2048, "block_m": 128}
    assert first.size == sum(path.stat().st_size for path in (place / first.name).iterdir())
    assert 0 <= first.age_s < 600
    assert inventory.size == sum(each.size for each in inventory.kernels)
    assert (inventory.state, inventory.damaged, inventory.leftovers, inventory.foreign) == (State.WRITABLE, (), (), ())


@pytest.mark.parametrize("metadata", [{}, {"resources": [], "config": 7, "nvrtc_version": None}, {"resources": {}}])
def test_what_a_sidecar_does_not_say_is_unknown(tmp_path: Path, metadata: dict[str, Any]) -> None:
    Store([tmp_path / "cache"]).publish(Entry("ab" * 32, "odd", b"cubin", metadata), "")
    (found,) = look(tmp_path / "cache").kernels
    assert (found.problem, found.registers, found.spill_bytes, found.nvrtc_version) == ("", None, None, None)


def test_a_damaged_kernel_is_told_and_the_others_are_intact(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PAUSES_S", ())
    (place / name_of(1) / CUBIN).write_bytes(b"junk")
    (place / name_of(2) / SIDECAR).unlink()
    (place / name_of(4)).mkdir(mode=0o700)
    for file in SIZE_LIMITS:
        (place / name_of(4) / file).write_bytes(b"[" * 100_000)
        (place / name_of(4) / file).chmod(0o600)
    inventory = look(place)
    problems = {each.label: each.problem for each in inventory.kernels}
    assert CUBIN in problems["tiny-1"] and SIDECAR in problems["tiny-2"] and not problems["tiny-3"]
    assert "not JSON" in problems["tiny-4"]
    assert [each.label for each in inventory.damaged] == ["tiny-1", "tiny-2", "tiny-4"]
    assert inventory.foreign == ()


@pytest.mark.parametrize("kind", ["file", "symlink", "FIFO"])
def test_what_has_a_kernels_name_and_is_no_directory_is_damaged_and_foreign(place: Path, kind: str) -> None:
    path = place / name_of(1)
    shutil.rmtree(path)
    if kind == "symlink":
        path.symlink_to(name_of(2))
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.write_text("")
    inventory = look(place)
    (damaged,) = inventory.damaged
    assert kind in damaged.problem and damaged.size == 0
    assert inventory.foreign == damaged.foreign == (name_of(1),)


NAME = name_of(1)


@pytest.mark.parametrize(
    "path, foreign",
    [
        (f".tmp-{NAME}-01234567/{CUBIN}", None),
        (f".quarantine-{NAME}-89abcdef/{SOURCE}", None),
        (f".tmp-{NAME}-01234567/notes", f".tmp-{NAME}-01234567"),
        (f".tmp-{NAME}-0123/{CUBIN}", f".tmp-{NAME}-0123"),
        (f".tmp-tiny-01234567/{CUBIN}", ".tmp-tiny-01234567"),
        (f".quarantine-{NAME}-89abcdef", f".quarantine-{NAME}-89abcdef"),
        (".tmp-of-somebody", ".tmp-of-somebody"),
        (f"{NAME}/notes", f"{NAME}/notes"),
        (f"tiny.{'ab' * 31}/{CUBIN}", f"tiny.{'ab' * 31}"),
        (f".locks/{NAME}.lock", ""),
        (".locks/notes", ".locks/notes"),
        ("notes \udcff\n", "notes \udcff\n"),
        ("manifest.json", "manifest.json"),
    ],
)
def test_leftovers_are_told_from_what_is_not_ours(place: Path, path: str, foreign: str | None) -> None:
    (place / path).parent.mkdir(mode=0o700, exist_ok=True)
    (place / path).write_bytes(b"12345")
    inventory = look(place)
    assert inventory.foreign == ((foreign,) if foreign else ())
    assert [(each.name, each.size) for each in inventory.leftovers] == (
        [(path.split("/")[0], 5)] if foreign is None else []
    )
    assert inventory.damaged == ()


def test_a_symlink_among_leftovers_is_foreign(place: Path, tmp_path: Path) -> None:
    (place / f".tmp-{NAME}-01234567").symlink_to(tmp_path)
    assert look(place).foreign == (f".tmp-{NAME}-01234567",)


def test_a_wrong_clock_breaks_nothing(place: Path) -> None:
    os.utime(place / name_of(1), (5e9, 5e9))
    os.utime(place / name_of(2), (0, 0))
    ages = {each.label: each.age_s for each in look(place).kernels}
    assert ages["tiny-1"] == 0 and ages["tiny-2"] > 50 * 365 * 86400
    assert not look(place).damaged


def test_a_kernel_that_goes_meanwhile_is_not_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Layer.read_files

    def removing(layer: Layer, name: str) -> dict[str, bytes]:
        if name == name_of(2):
            shutil.rmtree(layer.path / name)
        return read(layer, name)

    monkeypatch.setattr(Layer, "read_files", removing)
    assert [each.label for each in look(place).kernels] == ["tiny-1", "tiny-3"]


def test_a_kernel_that_cannot_be_read_is_damaged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Layer, "read_files", failing)
    assert all("Permission denied" in each.problem for each in look(place).damaged)
    assert len(look(place).damaged) == 3


def test_a_directory_that_no_kernel_would_be_loaded_from_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(place)
    expected = {
        "nowhere": "there is none",
        "file": "found a file",
        "link": "found a symlink",
        "file/cache": "file/cache",
    }
    for name, reason in expected.items():
        with pytest.raises(CacheError, match=reason):
            look(tmp_path / name)
    place.chmod(0o777)
    with pytest.raises(CacheError, match="0777.*FP8GEMM_TRUSTED_DIRS"):
        look(place)
    assert len(take_inventory(Layer(place, trusted=True)).kernels) == 3


@as_root
def test_what_another_user_may_not_see_is_an_error(open_to_all: Path) -> None:
    closed = fill(open_to_all / "closed", 1).path
    half_open = fill(open_to_all / "half", 1).path
    half_open.chmod(0o755)

    def as_other() -> tuple[str, str, State]:
        become(OTHER_USER)
        with pytest.raises(CacheError, match="cannot be opened") as error:
            look(closed)
        inventory = look(half_open)
        return str(error.value), inventory.kernels[0].problem, inventory.state

    message, problem, state = run(as_other)
    assert str(closed) in message and "Permission denied" in problem and state is State.READ_ONLY


def test_a_read_only_file_system_is_told(place: Path) -> None:
    require_mounts()

    def mounted() -> State:
        own_mounts()
        mount_read_only(place)
        return look(place).state

    assert run(mounted) is State.READ_ONLY
    assert look(place).state is State.WRITABLE
