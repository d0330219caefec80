"""What kernels of routing are launched with: structs as their headers declare them, grids, and what is kept loaded."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.ahead.kernels import ROUTES, all_quantizers, recorded_quantizers, routing_kernels
from fp8gemm.driver.arguments import CopyParams, RouteParams, UnpermuteParams
from fp8gemm.errors import InputError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import loaded, routing
from fp8gemm.kernels.hints import warmup_of_quantizer
from fp8gemm.kernels.routing import CHUNK, chunks_of, threads_of
from fp8gemm.tuning.problem import InputType, OutputType

INCLUDE = Path(__file__).resolve().parents[2] / "include/fp8gemm"
SIZES = {"int64_t": 8, "uint32_t": 4, "InputType": 4}
STRUCTS = {RouteParams: "route_tokens", CopyParams: "copy_to_rows", UnpermuteParams: "unpermute"}

every_dtype = pytest.mark.parametrize("dtype", InputType, ids=lambda dtype: dtype.value)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_the_host_lays_out_each_struct_as_its_header_declares_it(struct: type[ctypes.Structure]) -> None:
    text = (INCLUDE / f"kernels/{STRUCTS[struct]}.cuh").read_text()
    body = re.search(rf"^struct {struct.__name__} \{{\n(.*?)^\}};$", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    found = re.findall(r"^    (?:const )?(\w+\*?) (\w+);", body[1], re.MULTILINE)
    offset = 0
    for (kind, name), (field, *_) in zip(found, struct._fields_, strict=True):
        size = 8 if kind.endswith("*") else SIZES[kind]
        offset = -(-offset // size) * size
        described = getattr(struct, field)
        assert (name, offset, size) == (field, described.offset, described.size)
        offset += size
    assert ctypes.sizeof(struct) == offset and f"sizeof({struct.__name__}) == {offset}" in text


def test_types_of_weights_are_numbered_as_the_device_declares_them() -> None:
    declared = re.search(r"enum class InputType \{ (.*) \};", (INCLUDE / "common/types.cuh").read_text())
    assert declared is not None
    assert [name.removeprefix("k").upper() for name in declared[1].split(", ")] == [each.name for each in InputType]


def test_chunks_cover_all_indices_and_there_is_one_without_any() -> None:
    assert [chunks_of(count) for count in (0, 1, CHUNK, CHUNK + 1, 10 * CHUNK)] == [1, 1, 1, 2, 10]
    assert all(threads_of(request) % 32 == 0 for dtype in InputType for request in every_request(dtype))


def every_request(dtype: InputType) -> list[KernelRequest]:
    return routing_kernels(dtype)


@every_dtype
def test_a_warmup_has_them_for_each_type(dtype: InputType) -> None:
    wanted = all_quantizers([OutputType[dtype.name]], [])
    assert set(every_request(dtype)) <= set(wanted) and len({request.label for request in wanted}) == len(set(wanted))


@every_dtype
def test_what_was_recorded_is_what_is_made_ready(dtype: InputType) -> None:
    for request in every_request(dtype):
        constants = {name: getattr(value, "value", value) for name, value in request.config}
        ready = recorded_quantizers(request.family, constants)
        assert request in ready and set(ready) <= set(every_request(dtype))
    with pytest.raises(InputError, match="expected QuantizeRows, .* CopyToRows or Unpermute, got 'Route'"):
        recorded_quantizers("Route", {"input": "bf16"})


@every_dtype
def test_a_miss_names_the_warmup_that_has_them(dtype: InputType) -> None:
    for request in every_request(dtype):
        command = warmup_of_quantizer(request)
        named = dtype.name.lower() if request not in ROUTES else "bfloat16"
        assert command == f"fp8gemm warmup --quantizers 16 --out-dtype {named}"


def test_one_is_kept_for_each_gpu_and_way_of_launching(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Made:
        def __init__(self, request: KernelRequest, **options: Any) -> None:
            self.request, self.options = request, options

    monkeypatch.setattr(routing, "RoutingKernel", Made)
    monkeypatch.setattr(loaded, "_kernels", {})
    monkeypatch.setattr(loaded, "hopper_info", lambda index: None)
    record = tmp_path / "asked.jsonl"
    with settings.scope(jit="error", pdl=True, record=record):
        first: Any = loaded.routing_kernel_for(ROUTES[0], 3)
        assert loaded.routing_kernel_for(ROUTES[0], 3) is first and first.request is ROUTES[0]
        assert first.options == {"device_index": 3, "allow_compile": False, "programmatic": True}
        assert loaded.routing_kernel_for(ROUTES[0], 4) is not first
        assert loaded.routing_kernel_for(ROUTES[1], 3) is not first
    assert '"RouteTokens"' in record.read_text() and '"CountRoutes"' in record.read_text()
    with settings.scope(pdl=False):
        assert loaded.routing_kernel_for(ROUTES[0], 3) is not first
