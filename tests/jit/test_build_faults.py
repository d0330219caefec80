"""Damaged entries, refused cubins, broken sources, disks that cannot be written: healed or named, never in the way."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cache.entry import CUBIN, SIDECAR
from fp8gemm.cache.notices import CacheEvent, CacheWarning
from fp8gemm.errors import CacheMissError, CompileError
from fp8gemm.jit import build as build_module
from fp8gemm.jit.build import build, quarantine, rebuild
from fp8gemm.jit.compiler import CompileResult, compile_program
from tests.jit.cases import Forget, RequestFor


@pytest.mark.parametrize("file", [CUBIN, SIDECAR])
def test_a_damaged_entry_is_healed_once_with_one_warning(
    cache: Path, include: Path, request_for: RequestFor, compiles: list[str], file: str, forget: Forget
) -> None:
    good = build(request_for(7), include_dir=include)
    assert good.directory is not None
    path = good.directory / file
    path.write_bytes(path.read_bytes()[:-1])
    forget()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        healed = build(request_for(7), include_dir=include)
    (warning,) = [each.message for each in caught]
    assert isinstance(warning, CacheWarning)
    assert (warning.event, warning.place) == (CacheEvent.HEALED, good.directory)
    assert (healed.source, healed.cubin) == ("compiled", good.cubin)
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(request_for(7), include_dir=include).source == "disk"
    assert len(compiles) == 2


def test_an_entry_renamed_to_another_kernels_key_is_not_served(
    cache: Path, include: Path, request_for: RequestFor, forget: Forget
) -> None:
    seven, eight = (build(request_for(value), include_dir=include) for value in (7, 8))
    assert seven.directory is not None and eight.directory is not None
    shutil.rmtree(eight.directory)
    seven.directory.rename(eight.directory)
    forget()
    with pytest.warns(CacheWarning, match="tiny-8"):
        assert build(request_for(8), include_dir=include).cubin == eight.cubin


def test_a_cache_that_cannot_be_written_leaves_memory(
    include: Path, request_for: RequestFor, tmp_path: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    (tmp_path / "file").write_text("")
    for directories in ((), (tmp_path / "file" / "cache",)):
        with settings.scope(cache_dirs=directories), pytest.warns(CacheWarning) as caught:
            artifacts = [build(request_for(value), include_dir=include) for value in (7, 8, 7)]
        assert [each.source for each in artifacts] == ["compiled", "compiled", "memory"]
        assert {each.directory for each in artifacts} == {None}
        assert len(caught) == 1
    assert list(working.iterdir()) == []


def test_a_miss_says_which_damaged_entry_it_passed_over(
    cache: Path, include: Path, request_for: RequestFor, forget: Forget
) -> None:
    directory = build(request_for(7), include_dir=include).directory
    assert directory is not None
    (directory / CUBIN).write_bytes(b"junk")
    forget()
    with pytest.raises(CacheMissError, match="SHA-256"):
        build(request_for(7), include_dir=include, allow_compile=False)


def test_a_source_that_does_not_compile_leaves_no_entry_on_disk(
    cache: Path, include: Path, request_for: RequestFor
) -> None:
    header = include / "fp8gemm/common/number.cuh"
    good = header.read_text()
    header.write_text(good + "#error broken on purpose\n")
    with pytest.raises(CompileError, match="broken on purpose") as caught:
        build(request_for(7), include_dir=include)
    assert sorted(path.name for path in cache.iterdir()) == [".locks", ".refused"]
    assert list((cache / ".refused").iterdir()) == [caught.value.source_path]
    header.write_text(good)
    assert build(request_for(7), include_dir=include).source == "compiled"


def test_a_cubin_that_the_driver_refuses_is_compiled_again(
    cache: Path,
    include: Path,
    request_for: RequestFor,
    compiles: list[str],
    monkeypatch: pytest.MonkeyPatch,
    forget: Forget,
) -> None:
    def wrong_once(source: str, headers: object, *, label: str, **rest: object) -> CompileResult:
        result = compile_program(source, headers, label=label, **rest)  # type: ignore[arg-type]
        return CompileResult(b"\x7fELF junk", result.log, result.nvrtc_version, 0.1, result.resources, ())

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "compile_program", wrong_once)
        refused = build(request_for(7), include_dir=include)
    with pytest.warns(CacheWarning, match="CUDA_ERROR_NO_BINARY_FOR_GPU") as caught:
        rebuilt = rebuild(refused, reason="CUDA_ERROR_NO_BINARY_FOR_GPU", include_dir=include)
    assert len(caught) == 1
    assert (rebuilt.source, rebuilt.key) == ("compiled", refused.key)
    assert rebuilt.cubin != refused.cubin
    assert build(request_for(7), include_dir=include).cubin == rebuilt.cubin
    forget()
    assert build(request_for(7), include_dir=include).source == "disk"
    again = rebuild(refused, reason="a second process met the same bytes", include_dir=include)
    assert again.cubin == rebuilt.cubin and again.source != "compiled", "the replacement must survive"


def test_refused_bytes_in_a_sealed_layer_are_passed_over(
    cache: Path, include: Path, request_for: RequestFor, tmp_path: Path
) -> None:
    sealed = build(request_for(7), include_dir=include)
    for path in [*cache.rglob("*"), cache]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    writable = tmp_path / "writable"
    with settings.scope(cache_dirs=(cache, writable)):
        assert build(request_for(7), include_dir=include).source == "disk"
        with pytest.warns(CacheWarning, match="left in place"):
            quarantine(sealed, reason="refused")
        rebuilt = build(request_for(7), include_dir=include)
    assert rebuilt.source == "compiled"
    assert rebuilt.directory is not None and rebuilt.directory.parent == writable
