"""The kernels of examples/learn_hopper on the host: compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from examples.learn_hopper.run import Step, make_arguments, source_of
from examples.learn_hopper.tasks import Map, Task
from fp8gemm.headers import include_dir
from tests.host_compiler import COMPILER

_HERE = Path(__file__).parent
_INCLUDE = re.compile(r'#include "(fp8gemm/(?:ptx/\w+|common/types)\.cuh)"')
_PROGRAM = """\
#include "ptx.hpp"
#include "run.hpp"
{source}
extern "C" const char* emulate(const void* params, uint32_t grid, uint32_t threads, uint32_t seed) {{
    const auto kernel = [](const void* given) {{ {entry}(*static_cast<const Params*>(given)); }};
    return emulated::run(kernel, params, grid, threads, seed);
}}
"""

Emulate = Callable[[Task, int, int], str]
"""Runs a task with so many CTAs and a seed, and says what is wrong besides the result; "" if nothing is."""


def emulator(step: Step, directory: Path, change: Callable[[str], str] = str) -> Emulate:
    """A kernel, its source perhaps changed, compiled for the host; the test is skipped without a C++ compiler.

    Args:
        step: the kernel.
        directory: an empty one.
        change: makes another source of the kernel's, with the header of its folder.
    """
    if COMPILER is None:
        pytest.skip("no C++ compiler (c++, g++, clang++ or $CXX) to emulate Hopper with")
    # In the place of the headers of PTX wrappers stand empty ones: ptx.hpp has the wrappers.
    for header in (include_dir() / "fp8gemm").rglob("*.cuh"):
        for name in _INCLUDE.findall(header.read_text()):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).touch()
    program, library = directory / "kernel.cpp", directory / "kernel.so"
    program.write_text(_PROGRAM.format(source=change(source_of(step)), entry=step.entry))
    places = [f"-I{place}" for place in (directory, _HERE, include_dir())]
    command = [COMPILER, "-std=c++20", "-O2", "-Wno-unknown-pragmas", "-shared", "-fPIC", *places]
    done = subprocess.run([*command, str(program), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    function = ctypes.CDLL(str(library)).emulate
    function.restype = ctypes.c_char_p
    return partial(_emulate, function, step.threads)


def _emulate(function: Callable[..., bytes], threads: int, task: Task, grid: int, seed: int) -> str:
    arguments = make_arguments(task, encode=_encode_map)
    return function(ctypes.c_void_p(ctypes.addressof(arguments.params)), grid, threads, seed).decode()


def _encode_map(destination: int, box: Map) -> None:
    """``TensorMap`` of hopper.hpp."""
    rows, cols = box.matrix.shape
    size = box.matrix.element_size()
    strides = cols, rows, box.matrix.stride(0) * size
    text = struct.pack("<4Q4I", box.matrix.data_ptr(), *strides, size, box.cols, box.rows, box.swizzled)
    ctypes.memmove(destination, text, len(text))
