"""Faults 2, 3, 24 and 25 of the cache: what does not verify, what does not compile, and what may not."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.cache.entry import CUBIN, SIDECAR, SOURCE
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.errors import CacheMissError, CompileError
from fp8gemm.jit import build as build_module
from fp8gemm.jit import compiler, kernel
from fp8gemm.jit.build import build
from fp8gemm.jit.compiler import compile_options
from fp8gemm.jit.render import render_source
from tests.jit import children
from tests.jit.cases import Forget, Quick, RequestFor, snapshot, told, warned

# 2 and 3: truncated, flipped


@pytest.mark.parametrize("file", [SOURCE, CUBIN, SIDECAR])
@pytest.mark.parametrize("keep", [0, 3, 40, 0.5, -1], ids=["empty", "first word", "header", "half", "last byte"])
def test_fault_02_a_truncated_entry_is_healed(
    quick: Quick, cache: Path, compile_quickly: list[str], file: str, keep: float
) -> None:
    good = quick()
    assert good.directory is not None
    path = good.directory / file
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    assert len(path.read_bytes()) < len(content)
    with warned(CacheEvent.HEALED) as found:
        healed = quick()
    assert (healed.source, healed.cubin, healed.directory) == ("compiled", good.cubin, good.directory)
    assert found[0].place == good.directory and found[0].reason
    assert path.read_bytes() == content, "the entry is repaired"
    assert told(quick)[0].source == "disk" and len(compile_quickly) == 2
    assert len(list(cache.glob(".quarantine-*"))) == 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All the bytes that the loader gives to the driver."""
    given: list[bytes] = []
    monkeypatch.setattr(kernel, "load_library", lambda cubin: given.append(cubin))
    monkeypatch.setattr(kernel, "get_function", lambda library, name, index: 1)
    monkeypatch.setattr(kernel, "set_max_dynamic_shared", lambda function, size, index: None)
    monkeypatch.setattr(kernel, "relaxed_capture", nullcontext)
    monkeypatch.setattr(kernel, "_refuse_during_capture", lambda request, index: None)
    monkeypatch.setattr(kernel, "_kernels", {})
    monkeypatch.setattr(kernel, "_libraries", {})
    return given


@pytest.mark.parametrize("file", [SOURCE, CUBIN, SIDECAR])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.999])
@pytest.mark.parametrize("bit", [0, 7])
def test_fault_03_a_flipped_bit_is_found_before_the_driver_sees_it_and_healed(
    quick: Quick, include: Path, driver: list[bytes], forget: Forget, file: str, place: float, bit: int
) -> None:
    good = quick()
    assert good.directory is not None
    path = good.directory / file
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[int(place * len(content))] ^= 1 << bit
    path.write_bytes(flipped)
    forget()
    with warned(CacheEvent.HEALED):
        loaded = kernel.load(good.request, 0, 0, include_dir=include)
    assert driver == [good.cubin] and loaded.artifact.source == "compiled"
    assert path.read_bytes() == content
    assert told(quick)[0].source == "disk"


# 24: no compiler, or one that fails


def missing(patch: pytest.MonkeyPatch, nvrtc: Any) -> None:
    def absent() -> object:
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    patch.setattr(nvrtc, "nvrtcVersion", absent)


def answering(call: str, *more: object) -> Callable[[pytest.MonkeyPatch, Any], None]:
    """A library of which one function fails."""

    def sabotage(patch: pytest.MonkeyPatch, nvrtc: Any) -> None:
        patch.setattr(nvrtc, call, lambda *_: (nvrtc.nvrtcResult.NVRTC_ERROR_INTERNAL_ERROR, *more))

    return sabotage


def without(call: str) -> Callable[[pytest.MonkeyPatch, Any], None]:
    """A library that lacks a function, as the bindings tell it."""

    def sabotage(patch: pytest.MonkeyPatch, nvrtc: Any) -> None:
        def lacking(*_: object) -> object:
            raise RuntimeError(f'Function "{call}" not found')

        patch.setattr(nvrtc, call, lacking)

    return sabotage


@pytest.mark.parametrize(
    ("sabotage", "expected"),
    [
        (missing, "cannot be loaded.*nvidia-cuda-nvrtc-cu12.*libnvrtc.so.13"),
        (answering("nvrtcVersion", 0, 0), "nvrtcVersion must return NVRTC_SUCCESS.*INTERNAL_ERROR"),
        (answering("nvrtcCreateProgram", None), "nvrtcCreateProgram must return NVRTC_SUCCESS"),
        (answering("nvrtcCompileProgram"), "NVRTC refuses tiny-7 for sm_90a .NVRTC_ERROR_INTERNAL_ERROR"),
        (answering("nvrtcGetCUBINSize", 0), "nvrtcGetCUBINSize must return"),
        (answering("nvrtcGetCUBIN"), "nvrtcGetCUBIN must return"),
        (without("nvrtcGetCUBIN"), "NVRTC is broken.*nvidia-cuda-nvrtc-cu12.*nvrtcGetCUBIN"),
    ],
)
def test_fault_24_a_compiler_that_fails_is_an_error_with_all_it_takes_to_look_into_it(
    cache: Path,
    include: Path,
    request_for: RequestFor,
    sabotage: Callable[[pytest.MonkeyPatch, Any], None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda.bindings import nvrtc

    compiler._load_nvrtc.cache_clear()
    errors: list[CompileError] = []
    with monkeypatch.context() as patch:
        sabotage(patch, nvrtc)
        for _ in range(2):
            with pytest.raises(CompileError, match=f"(?s){expected}") as caught:
                build(request_for(7), include_dir=include)
            errors.append(caught.value)
    for error in errors:
        assert error.options == compile_options("sm_90a") and " ".join(error.options) in str(error)
        assert error.source_path is not None and f"source: {error.source_path}" in str(error)
        assert error.source_path.read_text() == render_source(request_for(7))
        assert isinstance(error.log, str)
    assert errors[0].source_path == errors[1].source_path, "a source is kept once, however often it is asked for"
    assert sorted(path.name for path in cache.iterdir()) == [".locks", ".refused"]
    assert build(request_for(7), include_dir=include).source == "compiled", "the failure is not remembered either"


def test_fault_24_a_source_that_is_refused_is_shown_with_the_compilers_log(
    cache: Path, include: Path, request_for: RequestFor
) -> None:
    header = include / "fp8gemm/common/number.cuh"
    header.write_text(header.read_text() + "int broken = nothing;\n")
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            build(request_for(7), include_dir=include)
        error = caught.value
        assert 'identifier "nothing" is undefined' in error.log and error.log in str(error)
        assert error.source_path is not None and error.source_path.read_text() == render_source(request_for(7))
    assert sorted(path.name for path in cache.iterdir()) == [".locks", ".refused"]


def test_fault_24_a_source_that_there_is_no_room_for_leaves_no_part_of_it(
    cache: Path, include: Path, request_for: RequestFor
) -> None:
    def work() -> tuple[object, str]:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))
        with pytest.raises(CompileError) as caught:
            build(request_for(7), include_dir=include)
        return caught.value.source_path, str(caught.value)

    header = include / "fp8gemm/common/number.cuh"
    header.write_text(header.read_text() + "int broken = nothing;\n")
    path, message = children.run(work)
    assert path is None and "could not be written" in message
    assert not list((cache / ".refused").iterdir())


# 25: a kernel that may not be compiled


@pytest.mark.parametrize("policy", ["error", "nearest"])
def test_fault_25_a_cold_key_that_may_not_be_compiled_is_an_error_at_once(
    quick: Quick, cache: Path, include: Path, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    key = quick().key
    before = snapshot(cache)

    def compile_nothing(*_: object, **__: object) -> object:
        raise AssertionError("nothing may be compiled")

    monkeypatch.setattr(build_module, "compile_program", compile_nothing)
    other = request_for(8)
    seconds = []
    with settings.scope(jit=policy), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(request_for(7), include_dir=include).key == key, "what is ready is served"
        for _ in range(5):
            started = time.perf_counter()
            with pytest.raises(CacheMissError) as caught:
                build(other, include_dir=include, allow_compile=policy == "compile")
            seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.02
    error = caught.value
    assert error.key is not None and len(error.key) == 64 and error.key != key
    for part in (error.key, "tiny-8", f"FP8GEMM_JIT={policy}", str(cache)):
        assert part in str(error)
    assert snapshot(cache) == before, "not even a lock is taken"


def test_fault_25_an_error_does_not_wait_for_who_compiles_the_same_kernel(
    quick: Quick, cache: Path, include: Path, request_for: RequestFor
) -> None:
    from fp8gemm.cache.store import Store

    key = quick().key
    (entry,) = cache.glob("tiny-7.*")
    entry.rename(cache.parent / "away")
    with Store([cache]).lock("tiny-7", key) as held, settings.scope(jit="error"):
        build_module._builders.clear()
        started = time.perf_counter()
        with pytest.raises(CacheMissError, match=key):
            build(request_for(7), include_dir=include)
        assert held and time.perf_counter() - started < 5, "the lock's time limit is 30 s"
