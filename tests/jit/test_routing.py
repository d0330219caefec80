"""Kernels of routing compile, under each NVRTC that there is, to what their design counts on: loads in flight together,
one wait ahead of all device memory, barriers where threads meet, and no local memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.ahead.kernels import routing_kernels
from fp8gemm.jit import headers
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.quantize import quantizer_to_rows
from fp8gemm.kernels.routing import (
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    route_and_quantize_request,
    threads_of,
    unpermute_request,
)
from fp8gemm.tuning.problem import InputType
from tests.jit.nvrtcs import compile_with, libraries
from tests.jit.sass import what_is_done

pytestmark = pytest.mark.usefixtures("known_kernels")

REQUESTS = tuple(dict.fromkeys(request for dtype in InputType for request in routing_kernels(dtype)))
ITEMS = dict(ROUTE_TOKENS.config)["items"]
WIDTHS = {InputType.BFLOAT16: 1, InputType.FLOAT16: 1, InputType.FLOAT32: 2}
"""16-byte loads of eight values."""
LANE_VALUES = 8

Listed = dict[str, list[str]]
"""Instructions by the kernel's label."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    with settings.scope(cache_dirs=(tmp_path_factory.mktemp("routing"),), trusted_dirs=(), jit="compile"):
        return build_many(REQUESTS)


@pytest.fixture(scope="module", params=["", *libraries()], ids=lambda path: Path(path).name or "found")
def listed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Listed:
    place = tmp_path_factory.mktemp("routing")
    _, cubins = compile_with(request.param, REQUESTS, place / "compiled", headers.include_dir())
    pairs = zip(REQUESTS, cubins, strict=True)
    found = {each.label: what_is_done(cubin.read_bytes(), place) for each, cubin in pairs}
    assert all(len(instructions) > 150 for instructions in found.values()), "a listing is not understood"
    return found


def opcodes(instructions: list[str], pattern: str) -> list[str]:
    return [opcode for opcode in (text.split()[0] for text in instructions) if re.match(pattern, opcode)]


def test_nothing_spills_and_nothing_is_warned_of(built: list[Artifact]) -> None:
    for artifact in built:
        uses, label = artifact.resources, artifact.request.label
        assert uses.spill_store_bytes == uses.spill_load_bytes == uses.stack_bytes == 0, label
        assert artifact.warnings == (), label


def test_the_next_kernel_fits_beside_them(built: list[Artifact]) -> None:
    """Of an SM's registers a CTA takes at most a third, and of its shared memory a tenth."""
    for artifact in built:
        registers = artifact.resources.registers * threads_of(artifact.request)
        assert registers <= 65536 // 3 and artifact.resources.shared_bytes <= 228 * 1024 // 10, artifact.request.label


def test_dependents_start_first_and_the_grids_before_are_awaited_before_any_device_memory(listed: Listed) -> None:
    for label, instructions in listed.items():
        found = [text.split()[0] for text in instructions]
        roles = 2 if label.startswith("route-and-quantize") else 1
        assert found.count("PREEXIT") == 1 and found.count("ACQBULK") == roles, label
        first = min(i for i, opcode in enumerate(found) if opcode.startswith(("LDG", "STG", "EXIT")))
        assert found.index("PREEXIT") < found.index("ACQBULK") < first, label


def test_nothing_lives_in_local_memory_and_no_order_is_left_to_atomics(listed: Listed) -> None:
    for label, instructions in listed.items():
        assert opcodes(instructions, r"LDL|STL|ATOM|RED|LD\.|ST\.") == [], label


def test_threads_of_a_route_meet_three_times_and_a_warp_for_each_item(listed: Listed) -> None:
    for request, barriers in ((ROUTE_TOKENS, 3), (COUNT_ROUTES, 1)):
        instructions = listed[request.label]
        assert len(opcodes(instructions, r"BAR\.SYNC")) == barriers
        assert len(opcodes(instructions, r"MATCH\.ANY")) == ITEMS
    others = (instructions for label, instructions in listed.items() if "route" not in label)
    assert not any(opcodes(instructions, r"BAR|LDS|STS") for instructions in others)


def test_all_ids_of_a_thread_are_in_flight_together(listed: Listed) -> None:
    """Two halves of each, and neither a branch nor what uses one between them."""
    for request in (ROUTE_TOKENS, COUNT_ROUTES):
        found = [text.split()[0] for text in listed[request.label]]
        first = next(i for i, opcode in enumerate(found) if opcode.startswith("LDG"))
        until = next(i for i, opcode in enumerate(found) if i > first and opcode.startswith(("BRA", "BSSY", "MATCH")))
        assert sum(opcode.startswith("LDG") for opcode in found[first:until]) == 2 * ITEMS, request.label


@pytest.mark.parametrize("dtype", InputType, ids=lambda dtype: dtype.value)
def test_sums_ask_for_all_rows_ahead_and_round_products_and_sums(dtype: InputType, listed: Listed) -> None:
    request = unpermute_request(dtype)
    instructions, ahead = listed[request.label], dict(request.config)["ahead"]
    assert isinstance(ahead, int)
    loads = opcodes(instructions, r"LDG\.E\.128")
    assert len(loads) == ahead * WIDTHS[dtype] and len(opcodes(instructions, r"STG")) == WIDTHS[dtype]
    assert len(opcodes(instructions, r"FMUL")) == len(opcodes(instructions, r"FADD")) == ahead * LANE_VALUES
    assert opcodes(instructions, r"FFMA") == []
    first_product = next(i for i, text in enumerate(instructions) if text.startswith(("FMUL", "FADD")))
    assert len(opcodes(instructions[:first_product], r"LDG\.E\.128")) == len(loads)


@pytest.mark.parametrize("dtype", InputType, ids=lambda dtype: dtype.value)
def test_a_token_is_read_once_and_quantised_once(dtype: InputType, listed: Listed) -> None:
    instructions = listed[quantizer_to_rows(dtype).request.label]
    assert opcodes(instructions, r"LDG\.E\.128") == ["LDG.E.128"] * WIDTHS[dtype]
    assert len(opcodes(instructions, r"F2FP\.SATFINITE\.E4M3")) == LANE_VALUES // 2
    assert len(opcodes(instructions, r"SHFL\.BFLY")) == 4
    stores = opcodes(instructions, r"STG")
    assert set(stores) == {"STG.E.64", "STG.E"} and stores.count("STG.E.64") == stores.count("STG.E")


@pytest.mark.parametrize("dtype", InputType, ids=lambda dtype: dtype.value)
def test_few_tokens_are_read_beside_all_ids(dtype: InputType, listed: Listed) -> None:
    """Of a warp's ids, which are 8 for each lane, and of its token all is asked for before any of it is used."""
    request = route_and_quantize_request(dtype)
    instructions, own = listed[request.label], listed[quantizer_to_rows(dtype).request.label]
    assert opcodes(instructions, r"LDG\.E\.128") == ["LDG.E.128"] * WIDTHS[dtype]
    for pattern in (r"F2FP\.SATFINITE\.E4M3", r"SHFL\.BFLY"):
        assert len(opcodes(instructions, pattern)) == len(opcodes(own, pattern)), pattern
    assert len(opcodes(instructions, r"BAR\.SYNC")) == 3 and len(opcodes(instructions, r"MATCH\.ANY")) == 1
    found = [text.split()[0] for text in instructions]
    waited = found.index("ACQBULK")
    until = next(i for i, opcode in enumerate(found) if i > waited and opcode.startswith(("BRA", "SHFL.BFLY")))
    assert sum(opcode.startswith("LDG") for opcode in found[waited:until]) == 2 * (8 + 1) + WIDTHS[dtype]


def test_codes_are_copied_16_at_a_time(listed: Listed) -> None:
    instructions = listed[COPY_TO_ROWS.label]
    assert opcodes(instructions, r"LDG\.E\.128") == ["LDG.E.128"]
    stores = opcodes(instructions, r"STG")
    assert set(stores) == {"STG.E.128", "STG.E"} and stores.count("STG.E.128") == stores.count("STG.E")
