"""NVRTC: from CUDA source to a cubin, with no toolkit, no driver and no GPU.

The compiler gets the headers as text and no directory to search. Therefore a cubin cannot depend on where the headers
lie, on the working directory, or on a file that its cache key does not cover. Which NVRTC compiles is not part of the
key either: any from `OLDEST` on, torch's own among them.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fp8gemm.errors import CompileError
from fp8gemm.frozen import dataclass
from fp8gemm.jit.fingerprint import Headers, header_closure

NO_REPORT = "no resource report"
"""Stands among the warnings when the log does not say what a kernel uses: its zeros then mean nothing."""

OLDEST = (12, 4)
"""The NVRTC of the oldest torch that is supported; the machine code of older ones has not been looked at."""

# NVRTC's own cache gives no report of resources, and ours verifies what it returns.
_NO_CACHE, _NO_CACHE_SINCE = "--no-cache", (12, 9)

_PROVIDERS = (
    f"NVRTC {OLDEST[0]}.{OLDEST[1]} or newer: the package nvidia-cuda-nvrtc-cu12 (CUDA 12) or nvidia-cuda-nvrtc (CUDA "
    "13) from pip, together with cuda-python, or that of a CUDA toolkit that CUDA_HOME or the dynamic linker can find"
)


@dataclass(frozen=True)
class Resources:
    """What a kernel uses, as the assembler reports it.

    Attributes:
        registers: per thread, at launch.
        stack_bytes: local memory per thread for arrays and calls.
        spill_store_bytes: per thread, written because registers ran out.
        spill_load_bytes: per thread, read back.
        shared_bytes: static shared memory per CTA.
        barriers: named barriers per CTA; 0 if the assembler does not say, as CUDA 12.4's.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    barriers: int


@dataclass(frozen=True)
class CompileResult:
    """A compiled kernel.

    Attributes:
        cubin: for the real architecture asked for.
        log: what the compiler and the assembler said.
        nvrtc_version: of the library that compiled it, as "12.9".
        seconds: in the compiler.
        resources: read from the log.
        warnings: codes of the assembler's performance warnings, such as C7510 (WGMMA serialised), sorted.
    """

    cubin: bytes
    log: str
    nvrtc_version: str
    seconds: float
    resources: Resources
    warnings: tuple[str, ...]


def compile_options(arch: str) -> tuple[str, ...]:
    """The options for a real architecture, which every NVRTC knows; all of them are part of the cache key.

    ``-lineinfo`` is not among them: it writes paths into the cubin. ``-default-device`` is not needed, because every
    device function is annotated.
    """
    return (
        f"--gpu-architecture={arch}",
        "--std=c++20",
        "--ptxas-options=-v",  # registers and spills are reported in the log only
        "--no-source-include",  # otherwise the working directory is searched for headers
    )


def compile_source(source: str, *, label: str, options: Sequence[str], arch: str, include_dir: Path) -> CompileResult:
    """Compile a rendered source against the headers below a directory.

    Args:
        source: CUDA C++ with one kernel.
        label: names the source in messages; it does not influence the cubin.
        options: as ``compile_options(arch)`` gives them.
        arch: the real architecture, such as "sm_90a".
        include_dir: the directory that holds ``fp8gemm/``.

    Raises:
        CompileError: NVRTC is missing, broken, too old, or refuses the source.
    """
    headers = header_closure(source, include_dir)
    return compile_program(source, headers, label=label, options=options, arch=arch)


def compile_program(
    source: str,
    headers: Headers,
    *,
    label: str,
    options: Sequence[str],
    arch: str,
    keep: Callable[[], Path | None] | None = None,
) -> CompileResult:
    """``compile_source`` with headers that have been read already: what is compiled is then what was fingerprinted.

    Args:
        source, label, options, arch: as for ``compile_source``.
        headers: as ``header_closure`` reads them.
        keep: writes a source that does not compile somewhere for a closer look, and says where; None if it could not.
            Without it the source stays with the caller alone.

    Raises:
        CompileError: as ``compile_source``.
    """
    try:
        return _compile(source, headers, label=label, options=options, arch=arch)
    except CompileError as error:
        raise _described(error, options, keep) from error.__cause__
    except RuntimeError as error:  # the bindings' own, where the library lacks a function
        broken = CompileError(f"NVRTC is broken: expected {_PROVIDERS}; found: {error}")
        raise _described(broken, options, keep) from error


def _compile(source: str, headers: Headers, *, label: str, options: Sequence[str], arch: str) -> CompileResult:
    nvrtc, version = _load_nvrtc()
    given = (*options, _NO_CACHE) if version >= _NO_CACHE_SINCE else options
    started = time.perf_counter()
    status, program = nvrtc.nvrtcCreateProgram(
        source.encode(),
        f"{label}.cu".encode(),
        len(headers),
        [content for _, content in headers],
        [path.encode() for path, _ in headers],
    )
    _require_success(nvrtc, "nvrtcCreateProgram", status)
    try:
        with _own_locale():
            (status,) = nvrtc.nvrtcCompileProgram(program, len(given), [option.encode() for option in given])
        log = _read(nvrtc, "ProgramLog", program).rstrip(b"\0 \n").decode("utf-8", "replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC refuses {label} for {arch} ({status.name})", log=log)
        cubin = _read(nvrtc, "CUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if not cubin:
        raise CompileError(f"NVRTC made no cubin of {label}; expected a real architecture, found {arch}", log=log)
    resources = parse_resources(log)
    codes = parse_warnings(log)
    return CompileResult(
        cubin=cubin,
        log=log,
        nvrtc_version=nvrtc_version(),
        seconds=time.perf_counter() - started,
        resources=resources,
        warnings=codes if resources.registers else (*codes, NO_REPORT),
    )


def nvrtc_version() -> str:
    """The version of the NVRTC library that is loaded, as "12.9". Loads it.

    Raises:
        CompileError: it is missing, broken or too old.
    """
    _, (major, minor) = _load_nvrtc()
    return f"{major}.{minor}"


def nvrtc_path() -> Path | None:
    """The file of the NVRTC library that is loaded; None where the system does not tell. Loads it.

    Raises:
        CompileError: it is missing, broken or too old.
    """
    _, version = _load_nvrtc()
    try:
        mapped = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1] for line in mapped if re.search(r"/libnvrtc\.so[^/]*$", line)}
    # torch may have loaded its own beside it.
    return next((Path(path) for path in sorted(paths) if _version_of(path) == version), None)


def parse_resources(log: str) -> Resources:
    """What the assembler reports: the kernel's own figures, and stack and spills of functions that it calls."""

    def figures(pattern: str) -> list[int]:
        return [int(number) for number in re.findall(pattern, log)] or [0]

    return Resources(
        registers=max(figures(r"Used (\d+) registers")),
        stack_bytes=sum(figures(r"(\d+) bytes stack frame")),
        spill_store_bytes=sum(figures(r"(\d+) bytes spill stores")),
        spill_load_bytes=sum(figures(r"(\d+) bytes spill loads")),
        shared_bytes=max(figures(r"(\d+) bytes smem")),
        barriers=max(figures(r"used (\d+) barriers")),
    )


def parse_warnings(log: str) -> tuple[str, ...]:
    """The codes of the assembler's warnings, such as C7508 (setmaxnreg ignored), each once, sorted."""
    return tuple(sorted(set(re.findall(r"\((C7\d{3})\)", log))))


@cache
def _load_nvrtc() -> tuple[Any, tuple[int, int]]:
    """The bindings of an NVRTC that answers, and its version. Imported here: a cache hit must not open it."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()  # the library is opened by the first call, not by the import
    except Exception as error:  # what a missing or broken library raises differs from version to version
        found = str(error).strip() or type(error).__name__
        raise CompileError(f"NVRTC cannot be loaded: expected {_PROVIDERS}; found: {found}") from error
    _require_success(nvrtc, "nvrtcVersion", status)
    if (major, minor) < OLDEST:
        raise CompileError(f"NVRTC is too old: expected {_PROVIDERS}; found: NVRTC {major}.{minor}")
    return nvrtc, (major, minor)


def _version_of(library: str) -> tuple[int, int] | None:
    """What a loaded library of NVRTC says that it is; None if it does not say."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        ctypes.CDLL(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError):
        return None
    return major.value, minor.value


@contextmanager
def _own_locale() -> Iterator[None]:
    """Afterwards this thread has the locale that it had: NVRTC 12.4 leaves it "C", in which ``open`` reads ASCII."""
    use = ctypes.CDLL(None).uselocale
    use.argtypes, use.restype = [ctypes.c_void_p], ctypes.c_void_p
    before = use(None)
    try:
        yield
    finally:
        use(before)


def _read(nvrtc: Any, what: str, program: Any) -> bytes:
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _require_success(nvrtc, f"nvrtcGet{what}Size", status)
    # The bindings write into the bytes object they are given.
    buffer = b"\0" * int(size)
    if size:
        (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        _require_success(nvrtc, f"nvrtcGet{what}", status)
    return buffer


def _require_success(nvrtc: Any, call: str, status: Any) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{call} must return NVRTC_SUCCESS; it returned {status.name}")


def _described(error: CompileError, options: Sequence[str], keep: Callable[[], Path | None] | None) -> CompileError:
    """The error, with all that is needed to look into it."""
    path = None if keep is None else keep()
    lines = [str(error)]
    if path is not None:
        lines.append(f"source: {path}")
    elif keep is not None:
        lines.append("its source could not be written to a cache directory (FP8GEMM_CACHE_DIR)")
    lines += [f"options: {' '.join(options)}", error.log]
    return CompileError("\n".join(lines).rstrip(), log=error.log, source_path=path, options=options)
