"""A kernel family of five lines, in a header tree of its own: what the JIT is tested with, apart from any GEMM."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.ahead.kernels import Demand
from fp8gemm.cache import files
from fp8gemm.cache.store import Store
from fp8gemm.jit import build as build_module
from fp8gemm.jit.build import Artifact, build
from fp8gemm.jit.compiler import CompileResult, compile_options, compile_program, compile_source
from fp8gemm.jit.fingerprint import Headers
from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import KernelRequest
from tests.jit.cases import ENTRY, NAME, TEXT, Quick

ROOT = Path(__file__).resolve().parents[2]

TINY = """\
#pragma once
#include "fp8gemm/common/number.cuh"

namespace fp8gemm {

template <class Config>
struct Tiny {
    static constexpr uint32_t kNumThreads = 128;

    struct Params {
        float* out;
    };

    static __device__ void run(const Params& params) { params.out[threadIdx.x] = kFactor * Config::kValue; }
};

}  // namespace fp8gemm
"""

NUMBER = """\
#pragma once

namespace fp8gemm {

using uint32_t = unsigned int;
constexpr uint32_t kFactor = 3;

}  // namespace fp8gemm
"""


def write_headers(include_dir: Path) -> Path:
    """Write the header tree below a directory and return the directory."""
    for name, text in (("kernels/tiny.cuh", TINY), ("common/number.cuh", NUMBER)):
        path = include_dir / "fp8gemm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return include_dir


@pytest.fixture
def include(tmp_path: Path) -> Path:
    """An include directory with the family Tiny."""
    return write_headers(tmp_path / "include")


@pytest.fixture
def request_for() -> Callable[[int], KernelRequest]:
    """Makes the request for Tiny with a value."""
    return lambda value: KernelRequest(f"tiny-{value}", "fp8gemm/kernels/tiny.cuh", "Tiny", (("value", value),))


@pytest.fixture
def tiny(
    include: Path, monkeypatch: pytest.MonkeyPatch, request_for: Callable[[int], KernelRequest]
) -> Callable[[int], Demand]:
    """What a warmup is asked for: so many kernels of Tiny in place of GEMMs."""
    monkeypatch.setattr("fp8gemm.jit.headers.include_dir", lambda: include)
    return lambda count: Demand({"h200": tuple(request_for(value) for value in range(1, count + 1))})


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """The only cache directory in force; it does not exist yet."""
    directory = tmp_path / "cache"
    with settings.scope(cache_dirs=(directory,), trusted_dirs=(), jit="compile"):
        yield directory


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of all kernels that are really compiled."""
    labels: list[str] = []

    def counted(source: str, headers: Headers, *, label: str, **rest: Any) -> CompileResult:
        labels.append(label)
        return compile_program(source, headers, label=label, **rest)

    monkeypatch.setattr(build_module, "compile_program", counted)
    return labels


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    """What the compiler makes of Tiny with the value 7."""
    include = write_headers(tmp_path_factory.mktemp("include"))
    source = render_source(KernelRequest("tiny-7", "fp8gemm/kernels/tiny.cuh", "Tiny", (("value", 7),)))
    return compile_source(source, label="tiny-7", options=compile_options("sm_90a"), arch="sm_90a", include_dir=include)


@pytest.fixture
def compile_quickly(compiled: CompileResult, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of all kernels that are compiled; all of them, in no time, to one cubin."""
    labels: list[str] = []

    def known(source: str, headers: Headers, *, label: str, **rest: Any) -> CompileResult:
        labels.append(label)
        return compiled

    monkeypatch.setattr(build_module, "compile_program", known)
    return labels


@pytest.fixture
def forget() -> Callable[[], None]:
    """Makes the next call go on as a new process would: with nothing in memory."""
    return build_module._builders.clear


@pytest.fixture
def quick(
    cache: Path,
    include: Path,
    request_for: Callable[[int], KernelRequest],
    forget: Callable[[], None],
    compile_quickly: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Quick:
    """Builds the kernel with the value 7 as a new process would, but compiles and tries again in no time."""
    monkeypatch.setattr(files, "_PAUSES_S", (0, 0, 0))

    def ask() -> Artifact:
        forget()
        return build(request_for(7), include_dir=include)

    return ask


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """An empty directory that every user can look into; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="fp8gemm-open-", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)
        yield Path(place)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A cache directory with one entry."""
    place = tmp_path / "cache"
    assert Store([place]).publish(ENTRY, TEXT) == place / NAME
    return place


@pytest.fixture
def python(include: Path, cache: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a Python process that uses the same cache and has ``request``, ``include`` and ``build`` at hand.

    It has the package without its __init__, which imports torch: that takes longer than all that is tested.
    """
    prelude = f"""
        import sys, types
        package = sys.modules["fp8gemm"] = types.ModuleType("fp8gemm")
        package.__path__ = [{str(ROOT / "fp8gemm")!r}]
        from pathlib import Path
        from fp8gemm.jit.build import build
        from fp8gemm.jit.request import KernelRequest
        include = Path({str(include)!r})
        request = KernelRequest("tiny-7", "fp8gemm/kernels/tiny.cuh", "Tiny", (("value", 7),))
    """

    def start(program: str, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**os.environ, "PYTHONPATH": path, "FP8GEMM_CACHE_DIR": str(cache), **environment}
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(program)],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
