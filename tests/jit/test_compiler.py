"""NVRTC: a cubin that depends on what was fingerprinted alone, what the log says of it, and clear failures."""

from __future__ import annotations

import ctypes
import locale
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.errors import CompileError
from fp8gemm.jit import compiler
from fp8gemm.jit.compiler import (
    NO_REPORT,
    CompileResult,
    compile_options,
    compile_program,
    compile_source,
    nvrtc_version,
    parse_resources,
    parse_warnings,
)
from fp8gemm.jit.fingerprint import header_closure
from fp8gemm.jit.render import ENTRY, render_source
from tests.jit.cases import Python, RequestFor


def compile_text(source: str, include: Path, arch: str = "sm_90a") -> CompileResult:
    return compile_source(source, label="text", options=compile_options(arch), arch=arch, include_dir=include)


def test_a_kernel_compiles_and_says_what_it_uses(include: Path, request_for: RequestFor) -> None:
    result = compile_text(render_source(request_for(7)), include)
    assert result.cubin.startswith(b"\x7fELF")
    assert ENTRY.encode() in result.cubin
    assert 0 < result.resources.registers <= 255
    assert (result.resources.spill_store_bytes, result.resources.spill_load_bytes) == (0, 0)
    assert result.warnings == ()
    assert result.nvrtc_version == nvrtc_version()
    assert int(result.nvrtc_version.split(".")[0]) >= 12
    assert result.seconds > 0


def test_the_cubin_does_not_depend_on_paths(
    include: Path, request_for: RequestFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = render_source(request_for(7))
    first = compile_text(source, include)
    moved = tmp_path / "a b;$(c) é"
    shutil.copytree(include, moved)
    monkeypatch.chdir(moved)
    assert compile_text(source, moved).cubin == first.cubin
    assert str(tmp_path).encode() not in first.cubin


def test_a_header_that_the_key_does_not_cover_cannot_be_included(
    include: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray.cuh").write_text("constexpr int kStray = 1;\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"stray\.cuh"):
        compile_text('#include "stray.cuh"\nextern "C" __global__ void k() {}\n', include)


def test_real_resources_are_read_from_the_log(include: Path) -> None:
    result = compile_text(
        'extern "C" __global__ void __launch_bounds__(128, 1) k(float* out, int n) {\n'
        "    __shared__ float tile[128];\n"
        "    float local[64];\n"
        "    for (int i = 0; i < n; ++i) local[(i * 7) % 64] = out[i];\n"
        "    tile[threadIdx.x] = local[n % 64];\n"
        "    __syncthreads();\n"
        '    asm volatile("bar.sync 3, 128;");\n'
        "    out[threadIdx.x] = tile[127 - threadIdx.x];\n"
        "}\n",
        include,
    )
    assert result.resources.shared_bytes == 512
    assert result.resources.stack_bytes == 256
    assert result.resources.barriers == (0 if nvrtc_version() == "12.4" else 4)


def test_spills_are_read_from_the_log(include: Path) -> None:
    values = range(200)
    result = compile_text(
        'extern "C" __global__ void __launch_bounds__(1024, 2) k(float* out, const float* in) {\n'
        + "".join(f"    float v{i} = in[{i} * 1024 + threadIdx.x];\n" for i in values)
        + "    __syncthreads();\n"
        + "".join(f"    out[{i} * 1024 + threadIdx.x] = v{i} * v{(i * 7 + 3) % 200};\n" for i in values)
        + "}\n",
        include,
    )
    assert result.resources.spill_store_bytes > 0
    assert result.resources.spill_load_bytes > 0
    assert result.resources.registers <= 32


def test_an_ignored_setmaxnreg_is_among_the_warnings(include: Path) -> None:
    body = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");'
    ignored = compile_text(f'extern "C" __global__ void k(float* out) {{ {body} out[0] = 1; }}\n', include)
    assert "C7508" in ignored.warnings
    bounded = f'extern "C" __global__ void __launch_bounds__(128, 1) k(float* out) {{ {body} out[0] = 1; }}\n'
    assert compile_text(bounded, include).warnings == ()


def test_the_log_of_a_kernel_with_a_called_function() -> None:
    log = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x\n"
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to y\n"
        "ptxas info    : (C7519) something\n"
        "ptxas info    : Function properties for helper\n"
        "ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'fp8gemm_kernel' for 'sm_90a'\n"
        "ptxas info    : Function properties for fp8gemm_kernel\n"
        "ptxas         .     24 bytes stack frame, 40 bytes spill stores, 80 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 9 barriers, 40 bytes cumulative stack size, 1024 bytes smem\n"
    )
    found = parse_resources(log)
    assert (found.registers, found.barriers, found.shared_bytes) == (168, 9, 1024)
    assert (found.stack_bytes, found.spill_store_bytes, found.spill_load_bytes) == (40, 44, 88)
    assert parse_warnings(log) == ("C7510", "C7519")


def test_a_log_without_a_report_is_noticed(include: Path) -> None:
    options = [option for option in compile_options("sm_90a") if "ptxas" not in option]
    source = 'extern "C" __global__ void k(float* out) { out[0] = 1; }\n'
    result = compile_source(source, label="x", options=options, arch="sm_90a", include_dir=include)
    assert result.warnings == (NO_REPORT,)


def test_a_refused_source_is_kept_and_shown_with_log_and_options(include: Path) -> None:
    header = include / "fp8gemm/common/number.cuh"
    header.write_text(header.read_text() + "int broken = nothing;\n")
    source = '#include "fp8gemm/kernels/tiny.cuh"\n'
    kept = include / "kept.cu"

    def keep() -> Path:
        kept.write_text(source)
        return kept

    with pytest.raises(CompileError) as caught:
        compile_program(
            source,
            header_closure(source, include),
            label="text",
            options=compile_options("sm_90a"),
            arch="sm_90a",
            keep=keep,
        )
    error = caught.value
    assert 'identifier "nothing" is undefined' in error.log
    assert "fp8gemm/common/number.cuh" in error.log
    assert error.options == compile_options("sm_90a")
    assert error.source_path == kept
    assert error.source_path.read_text() == source
    for part in (f"source: {error.source_path}", "--gpu-architecture=sm_90a", error.log):
        assert part in str(error)


def test_a_refused_source_that_cannot_be_kept_is_still_reported(include: Path) -> None:
    with pytest.raises(CompileError, match="could not be written to a cache directory") as caught:
        compile_program(
            "nonsense", (), label="text", options=compile_options("sm_90a"), arch="sm_90a", keep=lambda: None
        )
    assert caught.value.source_path is None
    assert caught.value.log


def test_a_source_of_the_callers_own_is_kept_nowhere(
    include: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(CompileError) as caught:
        compile_text("nonsense", include)
    assert caught.value.source_path is None and "source:" not in str(caught.value).partition(caught.value.log)[0]
    assert list(temporary.iterdir()) == []


def test_an_unknown_architecture_is_refused_by_name(include: Path) -> None:
    with pytest.raises(CompileError, match="sm_12345"):
        compile_text('extern "C" __global__ void k() {}\n', include, arch="sm_12345")


def test_the_compilers_memory_is_given_back(include: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc

    destroyed: list[object] = []
    destroy = nvrtc.nvrtcDestroyProgram

    def counted(program: object) -> object:
        destroyed.append(program)
        return destroy(program)

    monkeypatch.setattr(nvrtc, "nvrtcDestroyProgram", counted)
    compile_text('extern "C" __global__ void k() {}\n', include)
    with pytest.raises(CompileError):
        compile_text("nonsense", include)
    assert len(destroyed) == 2


@pytest.fixture
def answers_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], list[tuple[bytes, ...]]]]:
    """Makes the library say that it is of a version; gives the options of each compilation that follows."""
    from cuda.bindings import nvrtc

    compile_program = nvrtc.nvrtcCompileProgram
    given: list[tuple[bytes, ...]] = []

    def noted(program: Any, count: int, options: list[bytes]) -> Any:
        given.append(tuple(options))
        known = [option for option in options if option != b"--no-cache"]
        return compile_program(program, len(known), known)

    def answer(*version: int) -> list[tuple[bytes, ...]]:
        compiler._load_nvrtc.cache_clear()
        monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (nvrtc.nvrtcResult.NVRTC_SUCCESS, *version))
        return given

    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", noted)
    yield answer
    compiler._load_nvrtc.cache_clear()


@pytest.mark.parametrize(
    ("version", "more"), [((12, 4), ()), ((12, 8), ()), ((12, 9), (b"--no-cache",)), ((13, 0), (b"--no-cache",))]
)
def test_an_nvrtc_is_given_what_it_knows_beside_the_options_of_the_key(
    version: tuple[int, int], more: tuple[bytes, ...], include: Path, answers_with: Callable[..., Any]
) -> None:
    given = answers_with(*version)
    result = compile_text('extern "C" __global__ void k() {}\n', include)
    assert result.nvrtc_version == "{}.{}".format(*version)
    assert given == [(*(option.encode() for option in compile_options("sm_90a")), *more)]


def test_a_thread_keeps_its_locale(include: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after NVRTC 12.4, in whose locale text files would be ASCII."""
    from cuda.bindings import nvrtc

    libc, compile_program, seen = ctypes.CDLL(None), nvrtc.nvrtcCompileProgram, []
    libc.newlocale.restype = ctypes.c_void_p
    libc.uselocale.argtypes = [ctypes.c_void_p]

    def careless(*arguments: Any) -> Any:
        result = compile_program(*arguments)
        libc.uselocale(libc.newlocale(0x1FBF, b"C", None))  # LC_ALL_MASK
        seen.append(locale.nl_langinfo(locale.CODESET))
        return result

    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", careless)
    before = locale.nl_langinfo(locale.CODESET)
    with ThreadPoolExecutor(1) as thread:  # so that a failure leaves no other test in that locale
        thread.submit(compile_text, 'extern "C" __global__ void k() {}\n', include).result()
        assert thread.submit(locale.nl_langinfo, locale.CODESET).result() == before != seen[0]


def test_an_nvrtc_older_than_any_that_is_supported_is_refused(include: Path, answers_with: Callable[..., Any]) -> None:
    given = answers_with(12, 3)
    with pytest.raises(CompileError, match=r"too old: expected NVRTC 12\.4 or newer.*found: NVRTC 12\.3"):
        compile_text('extern "C" __global__ void k() {}\n', include)
    assert given == []


@pytest.mark.parametrize(
    "sabotage",
    [
        "sys.modules['cuda.bindings'] = None",
        "from cuda.bindings import nvrtc\ndef absent(): raise RuntimeError('libnvrtc.so.13: no such file')\n"
        "nvrtc.nvrtcVersion = absent",
    ],
    ids=["no bindings", "no library"],
)
def test_missing_nvrtc_says_what_to_install(python: Python, sabotage: str) -> None:
    program = f"import sys\n{sabotage}\n" + (
        "from fp8gemm.errors import CompileError\n"
        "try:\n"
        "    build(request, include_dir=include)\n"
        "except CompileError as error:\n"
        "    print(error)\n"
    )
    process = python(program)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    for part in ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc ", "cuda-python", "CUDA_HOME", "found: "):
        assert part in output
