"""Device headers that are pure functions, compiled for the host and called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from fp8gemm.jit.headers import include_dir
from tests.remembered import recall

COMPILER = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def compile_for_host(source: str, directory: Path) -> ctypes.CDLL:
    """The ``extern "C"`` functions of a C++ source that includes such headers; a warning fails the test.

    Args:
        source: the text.
        directory: where the source and the library are written.
    """
    done, library = compile_library(source, directory, "-std=c++17", "-O1", "-Wall", "-Wextra", f"-I{include_dir()}")
    assert "warning" not in done, done
    return library


def compile_library(source: str, directory: Path, *options: str) -> tuple[str, ctypes.CDLL]:
    """What the compiler says of a C++ source, and the library. Skips where there is no compiler; an error is a failure.

    It is compiled where no library of the same text, after all headers are in their places, was kept from another run.

    Args:
        source: the text.
        directory: where the source and the library are written.
        options: those of compiling.
    """
    if COMPILER is None:
        pytest.skip("no C++ compiler (c++, g++, clang++ or $CXX) to compile device headers for the host")
    path, library = directory / "source.cpp", directory / "source.so"
    path.write_text(source)

    def run(*more: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run([COMPILER, *options, *more, path], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done

    def make() -> tuple[str, bytes]:
        done = run("-shared", "-fPIC", "-o", str(library))
        return done.stderr.decode(), library.read_bytes()

    said, content = recall(
        "library", (_version(), repr(options), hashlib.sha256(run("-E", "-P").stdout).hexdigest()), make
    )
    library.write_bytes(content)
    return said, ctypes.CDLL(str(library))


@cache
def _version() -> str:
    return subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
