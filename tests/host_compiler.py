"""Device headers that are pure functions, compiled for the host and called through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fp8gemm.jit.headers import include_dir

COMPILER = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def compile_for_host(source: str, directory: Path) -> ctypes.CDLL:
    """The ``extern "C"`` functions of a C++ source that includes such headers; a warning fails the test.

    Args:
        source: the text.
        directory: where the source and the library are written.
    """
    if COMPILER is None:
        pytest.skip("no C++ compiler (c++, g++, clang++ or $CXX) to compile the scheduler headers for the host")
    path, library = directory / "scheduler.cpp", directory / "scheduler.so"
    path.write_text(source)
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{include_dir()}"]
    done = subprocess.run([*command, str(path), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return ctypes.CDLL(str(library))
