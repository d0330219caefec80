"""Kernels of one product or of groups on the host: compiled with what emulates Hopper, and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import dense, gemm
from fp8gemm.kernels.gemm import GemmKernel
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import AnyProblem
from tests.emulated import CONFIG, encode_2d, headers
from tests.host_compiler import compile_library
from tests.mutations.mutant import Edit

_PROGRAM = """\
#include "ptx.hpp"
#include "run.hpp"
#include "shuffles.hpp"
#include "fp8gemm/kernels/grouped.cuh"
{kernels}
extern "C" const char* emulate(uint32_t kernel, const void* params, uint32_t grid, uint32_t cluster, uint32_t threads,
                               uint32_t seed) {{
    void (*const kernels[])(const void*) = {{{names}}};
    return emulated::run(kernels[kernel], params, grid, cluster, threads, seed);
}}
extern "C" uint32_t boxes_apart() {{ return emulated::boxes_apart(); }}
"""
_KERNEL = """\
namespace {name} {{
{config}
void run(const void* params) {{ fp8gemm::{family}<Config>::run(*static_cast<const fp8gemm::KernelParams*>(params)); }}
}}  // namespace {name}
"""
EditHeader = Callable[[str, str], str]
"""What to make of a header's text, by its path below include/fp8gemm."""


def as_it_is(path: str, text: str) -> str:
    """No change of a header."""
    return text


def edited(edits: tuple[Edit, ...], path: str, text: str) -> str:
    """These changes of a header."""
    for edit in edits:
        if edit.header == path:
            assert text.count(edit.old) == 1
            text = text.replace(edit.old, edit.new)
    return text


def compiled(requests: Sequence[KernelRequest], directory: Path, edit: EditHeader) -> ctypes.CDLL:
    """Kernels that `run` takes by their indices; the test is skipped without a C++ compiler.

    Args:
        requests: what is to be built.
        directory: an empty one.
        edit: of the device headers.
    """
    places = headers(directory, edit)
    kernels = []
    for index, request in enumerate(requests):
        found = CONFIG.search(render_source(request))
        assert found is not None
        kernels.append(_KERNEL.format(name=f"v{index}", config=found[0], family=request.family))
    names = ", ".join(f"v{index}::run" for index in range(len(requests)))
    program = _PROGRAM.format(kernels="\n".join(kernels), names=names)
    options = "-std=c++20", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-w"
    _, loaded = compile_library(program, directory, *options, *places)
    loaded.emulate.restype = ctypes.c_char_p
    return loaded


def unloaded(family: type[GemmKernel], problem: AnyProblem, config: TileConfig, num_sms: int) -> Any:
    """The host's side of a kernel that no GPU has loaded, with so many SMs."""
    kernel: Any = family.__new__(family)
    kernel.problem, kernel.config = problem, config
    kernel._max_clusters = max(num_sms // config.cluster_size, 1)
    return kernel


@contextmanager
def maps_of_the_host() -> Iterator[None]:
    """Inside, tensor maps are those that the emulated Hopper reads."""
    with patch.object(gemm, "encode_2d", encode_2d), patch.object(dense, "encode_2d", encode_2d):
        yield


def run(
    library: ctypes.CDLL,
    index: int,
    kernel: Any,
    block: ArgumentBlock,
    rows: int,
    seed: int,
    *,
    compares_boxes: bool = True,
) -> str:
    """Launch a kernel for so many rows, and say what is wrong besides the output; "" if nothing is. With
    ``compares_boxes``, what L2 adds to is to have been brought there, and nothing else."""
    address, config = ctypes.c_void_p(ctypes.addressof(block.params)), kernel.config
    said: bytes = library.emulate(index, address, kernel.grid(rows), config.cluster_size, config.threads, seed)
    if said == b"" and compares_boxes and (apart := library.boxes_apart()):
        return f"of boxes that are brought into L2 and those that it adds to {apart} are not both"
    return said.decode()
