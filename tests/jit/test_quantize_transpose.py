"""The quantiser of a matrix and its transpose: no spills, wide accesses, room for others, barriers in their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.quantize import quantizer_with_transpose
from fp8gemm.tuning.problem import InputType
from tests.jit.sass import find, instructions_of

pytestmark = pytest.mark.usefixtures("known_kernels")

ROWS, CHUNKS = 8, 4
"""Of a lane: rows of its square, and pieces of 16 bytes of the transpose that it stores."""
SAVED = {"12.4": (16, 6)}
"""Bytes a thread, and instructions, with which an NVRTC saves some of 80 registers around the reciprocal of a subnormal
scale, which is hardly ever called. The others save none."""


def test_its_ctas_fit_an_sm_and_every_access_is_wide(tmp_path: Path) -> None:
    quantizers = [quantizer_with_transpose(dtype) for dtype in InputType]
    with settings.scope(cache_dirs=(tmp_path,), trusted_dirs=(), jit="compile"):
        artifacts = build_many([each.request for each in quantizers])
    for dtype, each, artifact, found in zip(
        InputType, quantizers, artifacts, instructions_of(artifacts, tmp_path), strict=True
    ):
        uses, label = artifact.resources, each.request.label
        assert uses.spill_store_bytes == uses.spill_load_bytes == 0 and not artifact.warnings, label
        assert each.request.min_ctas * uses.registers * each.threads <= 65536, label
        assert uses.shared_bytes == 8 * 128 * 4 + 128 * 128, label
        loads = [text.split()[0] for text in find(found, r"LDG?\.")]
        assert loads == ["LDG.E.128"] * (ROWS * (2 if dtype is InputType.FLOAT32 else 1)), label
        assert len(find(found, r"STG\.E\.64 ")) == ROWS, label
        assert len(find(found, r"STG\.E\.128 ")) == CHUNKS + 2 + 2, "scales of rows, and those of columns"
        assert not find(found, r"LDS(?!\.128)"), label
        most_bytes, most = SAVED.get(artifact.nvrtc_version, (0, 0))
        assert uses.stack_bytes <= most_bytes and len(find(found, "LDL|STL")) <= most, label


def test_what_threads_share_is_behind_a_barrier(tmp_path: Path) -> None:
    """Largest values, then codes: each is written, all meet, and then it is read."""
    with settings.scope(cache_dirs=(tmp_path,), trusted_dirs=(), jit="compile"):
        artifacts = build_many([quantizer_with_transpose(dtype).request for dtype in InputType])
    for found in instructions_of(artifacts, tmp_path):
        opcodes = [text.split()[0] for text in found]
        meetings = [i for i, opcode in enumerate(opcodes) if opcode.startswith("BAR.SYNC")]
        written = [i for i, opcode in enumerate(opcodes) if opcode.startswith("STS")]
        read = [i for i, opcode in enumerate(opcodes) if opcode.startswith("LDS")]
        assert len(meetings) == 2
        assert parts(written, meetings) == [2, 8, 0], "a lane's columns, four at a time; then their codes"
        assert parts(read, meetings) == [0, 16, 4], "those of all warps; then pieces of the transpose"
        awaited = opcodes.index("ACQBULK")
        accesses = [i for i, opcode in enumerate(opcodes) if opcode.startswith(("LDG", "STG", "STS"))]
        assert opcodes.index("PREEXIT") < awaited < min(accesses)


def parts(places: list[int], meetings: list[int]) -> list[int]:
    """How many are ahead of all meetings, behind the first one, and so on."""
    behind = [sum(meeting < place for meeting in meetings) for place in places]
    return [behind.count(number) for number in range(len(meetings) + 1)]
