"""What the compiler and the disassembler gave before, kept from run to run for tests that only look at it.

Kernels have the library's cache key, to which the NVRTC that compiled them is added, down to its build, and our own
module that asks it; listings have the digest of the cubin and nvdisasm's version. What is kept under a key is what
would be made again. Tests of compiling itself never ask here.

It lies in ``.cache/test-kernels`` of the checkout, or where ``FP8GEMM_TEST_CACHE`` says; if that is empty, nowhere.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from fp8gemm.jit import compiler
from fp8gemm.jit.compiler import CompileResult
from fp8gemm.jit.fingerprint import Headers, key_of

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "FP8GEMM_TEST_CACHE"
MAX_BYTES = 512 * 2**20
"""A run of one third of the kernels, with their listings, keeps 25 MiB."""
_UNFINISHED, _UNFINISHED_FOR_S = ".part", 3600.0


def place() -> Path | None:
    """The directory; None if nothing is to be kept."""
    named = os.environ.get(VARIABLE)
    return ROOT / (".cache/test-kernels" if named is None else named) if named != "" else None


def recall(kind: str, key: tuple[str, ...], make: Callable[[], T]) -> T:
    """What `make` returned for this key, now or before; what it raises is not kept.

    Several processes may ask at once: each reads a whole file or none, and at worst makes the same as another.
    """
    directory = place()
    if directory is None:
        return make()
    path = directory / f"{kind}-{hashlib.sha256(repr(key).encode()).hexdigest()}"
    with suppress(Exception):  # whatever cannot be read is made anew
        kept = path.read_bytes()
        if hashlib.sha256(kept[32:]).digest() == kept[:32]:
            found: T = pickle.loads(zlib.decompress(kept[32:]))
            os.utime(path)
            return found
    made = make()
    with suppress(OSError):
        _write(path, zlib.compress(pickle.dumps(made), 1))
    return made


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(_UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def evict(directory: Path, max_bytes: int = MAX_BYTES) -> None:
    """Remove what was asked for longest ago, until the rest fits. Who reads a file meanwhile has it to its end."""
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        with suppress(FileNotFoundError):  # another process removes too
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        abandoned = path.suffix == _UNFINISHED and time.time() - used > _UNFINISHED_FOR_S
        if abandoned or (total > max_bytes and path.suffix != _UNFINISHED):
            path.unlink(missing_ok=True)
            total -= size


def compile_program(source: str, headers: Headers, *, options: Any, arch: str, **rest: Any) -> CompileResult:
    """In place of the library's function of this name."""
    key = key_of(source, headers, options=options, arch=arch)
    make = partial(compiler.compile_program, source, headers, options=options, arch=arch, **rest)
    return compiled("kernel", key, make)


def compiled(kind: str, key: str, make: Callable[[], T]) -> T:
    """What the compiler makes of what has this key, in its library's sense."""
    return recall(kind, (_compiler(), key), make)


@cache
def _compiler() -> str:
    """Tells one NVRTC from another, and how it is asked. It writes its exact version at the head of all PTX."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(b"", b"empty.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_90a"])
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = bytes(size)  # which the bindings write into
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(program)
    said = ptx.decode().partition("\n.version")[0]
    assert status.name == "NVRTC_SUCCESS" and "release" in said, said
    return said + inspect.getsource(compiler)


def disassemble(tool: Path, cubin: Path) -> str:
    """What nvdisasm prints of a cubin; subprocess.CalledProcessError if it cannot read it."""

    def ask() -> str:
        # Without the analysis of data flow, which takes time and adds nothing to what is printed of these kernels.
        return subprocess.run([tool, "-c", "-ndf", cubin], capture_output=True, text=True, check=True).stdout

    return recall("listing", (_version(tool), hashlib.sha256(cubin.read_bytes()).hexdigest()), ask)


@cache
def _version(tool: Path) -> str:
    return subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
