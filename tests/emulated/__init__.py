"""The kernels of examples/learn_hopper on the host: compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from examples.learn_hopper.run import Step, make_arguments, source_of
from examples.learn_hopper.tasks import Task
from fp8gemm.driver import tensor_map
from fp8gemm.driver.tensor_map import DataType, Swizzle
from fp8gemm.jit.headers import include_dir
from tests.host_compiler import compile_library

_HERE = Path(__file__).parent
_PROGRAM = """\
#include "ptx.hpp"
#include "run.hpp"
{includes}
{kernels}
extern "C" const char* emulate(uint32_t kernel, const void* params, uint32_t grid, uint32_t threads, uint32_t seed) {{
    void (*const kernels[])(const void*) = {{{names}}};
    return emulated::run(kernels[kernel], params, grid, 1, threads, seed);
}}
extern "C" const uint32_t params_bytes = sizeof(v0::Params);
"""
_KERNEL = """\
namespace {name} {{
{source}
void run(const void* params) {{ {entry}(*static_cast<const Params*>(params)); }}
}}  // namespace {name}
"""
# What a kernel's text has that several of them in one program may not.
_INCLUDES = re.compile(r'^#(?:include "fp8gemm/.*"|pragma once)$', re.MULTILINE)
_ENTRY = 'extern "C" __global__'
_SHARED = "extern __shared__ __align__(1024) uint8_t shared_bytes[];"

CONFIG = re.compile(r"^struct Config \{$.*?^\};$", re.MULTILINE | re.DOTALL)
"""Of a rendered source, what its kernel is compiled for."""

Emulate = Callable[[Task, int, int], str]
"""Runs a task with so many CTAs and a seed, and says what is wrong besides the result; "" if nothing is."""


def emulators(step: Step, directory: Path, sources: Sequence[str] = ()) -> list[Emulate]:
    """A kernel, compiled for the host, and other versions of it; the test is skipped without a C++ compiler.

    Args:
        step: the kernel.
        directory: an empty one.
        sources: those of the other versions, made from `source_of`.
    """
    texts = (source_of(step), *sources)
    kernels = [_KERNEL.format(name=f"v{i}", source=_plain(text), entry=step.entry) for i, text in enumerate(texts)]
    names = ", ".join(f"v{i}::run" for i in range(len(texts)))
    includes = "\n".join(_INCLUDES.findall(texts[0]))
    program = _PROGRAM.format(includes=includes, kernels="\n".join(kernels), names=names)
    places = headers(directory)
    _, loaded = compile_library(program, directory, "-std=c++20", "-O1", "-Wno-unknown-pragmas", *places)
    loaded.emulate.restype = ctypes.c_char_p
    return [partial(_emulate, loaded, i, step.threads) for i in range(len(texts))]


def headers(directory: Path, edit: Callable[[str, str], str] = lambda path, text: text) -> list[str]:
    """The compiler's options that find the device headers: those of PTX wrappers are empty, ptx.hpp has them.

    Args:
        directory: where those stand that are not as the device has them.
        edit: what to make of a header's text, by its path below include/fp8gemm.
    """
    include = include_dir()
    for path in (include / "fp8gemm").rglob("*.cuh"):
        name = path.relative_to(include)
        text = "" if name.parent.name == "ptx" else _on_host(edit(str(name.relative_to("fp8gemm")), path.read_text()))
        if text != path.read_text():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
    return [f"-I{place}" for place in (directory, _HERE, include)]


def _on_host(text: str) -> str:
    """With the host's integers, and with shared memory that hopper.hpp has."""
    return re.sub(r"^using (u?int\d+_t) = .*;$", r"using ::\1;", text.replace(_SHARED, ""), flags=re.MULTILINE)


def _plain(source: str) -> str:
    assert _ENTRY in source and _SHARED in source
    return _INCLUDES.sub("", source).replace(_ENTRY, "").replace(_SHARED, "")


def _emulate(library: ctypes.CDLL, kernel: int, threads: int, task: Task, grid: int, seed: int) -> str:
    params = make_arguments(task, encode=encode_2d).params
    assert ctypes.sizeof(params) == ctypes.c_uint32.in_dll(library, "params_bytes").value
    said: bytes = library.emulate(kernel, ctypes.c_void_p(ctypes.addressof(params)), grid, threads, seed)
    return said.decode()


def encode_2d(
    destination: int,
    *,
    address: int,
    dtype: DataType,
    inner: int,
    outer: int,
    outer_stride_bytes: int,
    box_inner: int,
    box_outer: int,
    swizzle: Swizzle = "none",
    fetch_bytes: int = 256,
) -> None:
    """``TensorMap`` of hopper.hpp, by the rules of `fp8gemm.driver.tensor_map.encode_2d`."""
    tensor_map._traits(dtype, (box_inner, box_outer), swizzle, fetch_bytes)
    tensor_map._check_place(destination, address, inner, outer, outer_stride_bytes)
    size = tensor_map._ELEMENT_BYTES[dtype]
    span = 16 if swizzle == "none" else int(swizzle[:-1])
    assert swizzle == "none" or box_inner * size == span, "hopper.hpp knows swizzled rows of one span alone"
    extents = address, inner, outer, outer_stride_bytes, size, box_inner, box_outer
    text = struct.pack("<4Q4I", *extents, span // 16 - 1)
    ctypes.memmove(destination, text, len(text))
