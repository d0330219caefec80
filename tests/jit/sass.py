"""The instructions of compiled kernels.

A disassembler is needed: ``nvdisasm`` on PATH, from the package nvidia-cuda-nvdisasm, or as Triton brings it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.render import ENTRY
from tests import remembered

Instructions = tuple[str, ...]
"""Opcode first, in the order of the listing."""

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*?)\s*;")


def disassemblers() -> Iterator[Path]:
    if on_path := shutil.which("nvdisasm"):
        yield Path(on_path)
    for package, pattern in (("nvidia", "*/bin/nvdisasm"), ("triton", "backends/nvidia/bin/nvdisasm")):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(Path(place).glob(pattern), reverse=True)


def disassemble(tool: Path, cubin: Path) -> str | None:
    """The listing, or None if this tool cannot read the cubin: it may be older than the compiler."""
    try:
        text = remembered.disassemble(tool, cubin)
    except subprocess.CalledProcessError:
        return None
    return text if ENTRY in text else None


def listings_of(artifacts: Sequence[Artifact], directory: Path) -> list[str]:
    """Of each kernel; the test is skipped if nothing here can disassemble them."""
    tools = list(disassemblers())
    if not tools:
        pytest.skip("no nvdisasm on PATH, in the package nvidia-cuda-nvdisasm or in triton")
    cubin = directory / "kernel.cubin"
    cubin.write_bytes(artifacts[0].cubin)
    tool = next((tool for tool in tools if disassemble(tool, cubin)), None)
    if tool is None:
        pytest.skip(f"none of {', '.join(map(str, tools))} reads a cubin of NVRTC {artifacts[0].nvrtc_version}")

    def read(artifact: Artifact) -> str:
        label = artifact.request.label
        cubin = directory / f"{label}.cubin"
        cubin.write_bytes(artifact.cubin)
        listing = disassemble(tool, cubin)
        assert listing is not None, label
        return listing

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(read, artifacts))


def instructions_of(artifacts: Sequence[Artifact], directory: Path) -> list[Instructions]:
    """Those of each kernel; skips as `listings_of` does."""
    found = [instructions_in(listing) for listing in listings_of(artifacts, directory)]
    for artifact, instructions in zip(artifacts, found, strict=True):
        assert len(instructions) > 300, f"{artifact.request.label}: the listing is not understood"
    return found


def instructions_in(listing: str) -> Instructions:
    return tuple(match[1] for match in _INSTRUCTION.finditer(listing))


def what_is_done(cubin: bytes, directory: Path) -> list[str]:
    """A kernel's instructions, but for those that do nothing: the assembler may leave one in the place of a fence."""
    path = directory / "kernel.cubin"
    path.write_bytes(cubin)
    listing = next((read for tool in disassemblers() if (read := disassemble(tool, path))), None)
    if listing is None:
        pytest.skip("no nvdisasm here reads a cubin of this NVRTC")
    return [instruction for instruction in instructions_in(listing) if instruction != "NOP"]


def find(instructions: Instructions, pattern: str) -> list[str]:
    """The instructions whose opcode starts as the pattern says."""
    return [text for text in instructions if re.match(pattern, text)]


def find_in_waves(instructions: Instructions, pattern: str) -> list[str]:
    """The same of those between the WGMMAs of one wave, of all of them."""
    found, of_wave = [], 0
    for text in find(instructions, f"QGMMA|{pattern}"):
        if text.startswith("QGMMA"):
            of_wave = (of_wave + 1) % 4
        elif of_wave:
            found.append(text)
    return found
