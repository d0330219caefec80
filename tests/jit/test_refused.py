"""Sources that do not compile: a few are kept in the cache directory, where they are taken for nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cache import files
from fp8gemm.cache.archive import import_kernels
from fp8gemm.cache.eviction import expendable, removable, remove, remove_locks
from fp8gemm.cache.inventory import take_inventory
from fp8gemm.cache.refused import MOST_KEPT, REFUSED
from fp8gemm.cache.seal import find_problems, seal_layer
from fp8gemm.cache.store import Layer
from fp8gemm.errors import CompileError
from fp8gemm.jit import build as build_module
from fp8gemm.jit.build import build
from fp8gemm.jit.compiler import CompileResult, compile_program
from fp8gemm.jit.render import render_source
from tests.jit.caches import export, fill, finds, look, name_of
from tests.jit.cases import RequestFor
from tests.jit.children import OTHER_USER, as_root

Failing = Callable[[int], CompileError]


@pytest.fixture
def failing(cache: Path, include: Path, request_for: RequestFor) -> Failing:
    """Asks for a kernel that does not compile."""
    header = include / "fp8gemm/common/number.cuh"
    header.write_text(header.read_text() + "int broken = nothing;\n")

    def ask(value: int) -> CompileError:
        with pytest.raises(CompileError) as caught:
            build(request_for(value), include_dir=include)
        return caught.value

    return ask


def kept(place: Path) -> list[str]:
    return sorted(path.name for path in (place / REFUSED).iterdir())


def test_the_newest_few_are_kept_and_the_message_says_where(
    failing: Failing, cache: Path, request_for: RequestFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    paths = []
    for value in range(MOST_KEPT + 5):
        error = failing(value)
        assert error.source_path is not None and error.source_path.parent == cache / REFUSED
        assert f"\nsource: {error.source_path}\n" in str(error)
        assert error.source_path.read_text() == render_source(request_for(value))
        os.utime(error.source_path, ns=(value, value))
        paths.append(error.source_path)
    assert kept(cache) == sorted(path.name for path in paths[-MOST_KEPT:])
    assert failing(12).source_path == paths[12] and len(kept(cache)) == MOST_KEPT, "one source is kept once"
    assert list(temporary.iterdir()) == [], "nothing is left anywhere else"


def test_without_a_directory_to_write_to_nothing_is_kept(
    failing: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with settings.scope(cache_dirs=()), pytest.warns(RuntimeWarning, match="memory-only"):
        error = failing(1)
    assert error.source_path is None
    assert "its source could not be written to a cache directory (FP8GEMM_CACHE_DIR)" in str(error)
    assert not (tmp_path / "temporary").exists()


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_nobody_else_can_read_or_write_them_whatever_the_umask(failing: Failing, cache: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = failing(1).source_path
    finally:
        os.umask(before)
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == files.FILE_MODE
    assert stat.S_IMODE(path.parent.stat().st_mode) == files.DIRECTORY_MODE


@pytest.mark.parametrize("kind", ["symlink", "file", "open to others"])
def test_a_place_that_is_not_ours_is_left_alone(failing: Failing, cache: Path, tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache.mkdir(mode=0o700)
    if kind == "symlink":
        (cache / REFUSED).symlink_to(elsewhere)
    elif kind == "file":
        (cache / REFUSED).write_text("")
    else:
        (cache / REFUSED).mkdir()
        (cache / REFUSED).chmod(0o777)
    error = failing(1)
    assert error.source_path is None and "could not be written" in str(error)
    assert list(elsewhere.iterdir()) == []


def test_foreign_files_beside_them_stay(failing: Failing, cache: Path) -> None:
    failing(0)
    for name in ("notes", "notes.cu", f"{name_of(1)}", f".tmp-{name_of(1)}-01234567"):
        (cache / REFUSED / name).write_text("")
        os.utime(cache / REFUSED / name, (0, 0))
    (cache / REFUSED / f".tmp-{name_of(1)}.cu-01234567").write_text("half a")  # a writer was killed
    os.utime(cache / REFUSED / f".tmp-{name_of(1)}.cu-01234567", (0, 0))
    for value in range(MOST_KEPT + 1):
        failing(value)
    assert len(kept(cache)) == MOST_KEPT + 4
    inventory = look(cache)
    assert len(inventory.leftovers) == MOST_KEPT and len(inventory.foreign) == 4
    remove(inventory, removable(inventory))
    assert len(kept(cache)) == 4


@pytest.fixture
def filled(failing: Failing, cache: Path) -> Layer:
    """A cache directory with two kernels and two sources that do not compile."""
    layer = fill(cache, 1, 2)
    for value in (5, 6):
        failing(value)
    return layer


def test_they_are_no_kernels_and_no_damage(filled: Layer) -> None:
    inventory = look(filled.path)
    assert [kernel.name for kernel in inventory.kernels] == sorted(map(name_of, (1, 2)))
    assert [leftover.name for leftover in inventory.leftovers] == [f"{REFUSED}/{name}" for name in kept(filled.path)]
    assert inventory.foreign == () and find_problems(inventory) == ()
    assert all(leftover.size > 0 and leftover.is_file for leftover in inventory.leftovers)
    assert finds(filled.path, 1) and finds(filled.path, 2)


def test_a_seal_has_none(filled: Layer) -> None:
    assert seal_layer(filled, version="1").manifest.count == 2
    assert not (filled.path / REFUSED).exists()
    assert seal_layer(filled, version="1").already


def test_one_in_a_sealed_directory_is_a_difference(filled: Layer, failing: Failing) -> None:
    seal_layer(filled, version="1")
    filled.path.chmod(0o700)
    failing(5)
    filled.path.chmod(0o555)
    assert any(f"{REFUSED}/" in problem and "is extra" in problem for problem in find_problems(look(filled.path)))


def test_an_archive_has_none(filled: Layer, tmp_path: Path) -> None:
    there = Layer(tmp_path / "there")
    import_kernels(export(filled, tmp_path / "kernels"), there)
    assert sorted(path.name for path in there.path.iterdir() if path.is_dir()) == [
        ".locks",
        *sorted(map(name_of, (1, 2))),
    ]


def test_they_go_first_and_by_age(filled: Layer) -> None:
    first, second = kept(filled.path)
    os.utime(filled.path / REFUSED / first, (0, 0))
    inventory = take_inventory(filled)
    assert [item.name for item in expendable(inventory, older_than_s=1e6)] == [f"{REFUSED}/{first}"]
    chosen = expendable(inventory, max_size=inventory.size - 1)
    assert remove(inventory, chosen).left == () and kept(filled.path) == [second]
    inventory = take_inventory(filled)
    assert remove(inventory, removable(inventory)).left == ()
    remove_locks(filled)
    assert list(filled.path.iterdir()) == []


def test_one_that_compiles_later_is_a_kernel_like_any_other(
    cache: Path, include: Path, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch, compiled: CompileResult
) -> None:
    def refuse(*arguments: object, **options: object) -> CompileResult:
        return compile_program("nonsense", (), **{**options, "options": ("--gpu-architecture=sm_90a",)})  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "compile_program", refuse)
        with pytest.raises(CompileError):
            build(request_for(7), include_dir=include)
    assert build(request_for(7), include_dir=include).directory is not None
    assert len(look(cache).kernels) == 1


@as_root
def test_a_directory_that_others_own_gets_none(failing: Failing, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir(mode=0o755)
    os.chown(place, OTHER_USER, OTHER_USER)
    with settings.scope(cache_dirs=(place,)), pytest.warns(RuntimeWarning, match="refused"):
        error = failing(1)
    assert error.source_path is None and list(place.iterdir()) == []
