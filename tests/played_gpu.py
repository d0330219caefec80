"""A GPU that CPU tensors are taken to be on, played at the driver's level.

Kernels, plans and arguments are real. A launch reads the addresses in its argument block, as a kernel would, and
computes by the reference what lies there; of a tensor map the first word is the address that was encoded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.driver.arguments import ArgumentBlock, Arguments, QuantizeParams
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import dense as dense_family
from fp8gemm.kernels import gemm as kernel_family
from fp8gemm.kernels import loaded
from fp8gemm.kernels import quantize as quantize_family
from fp8gemm.kernels import swap_ab as swap_ab_family
from fp8gemm.products import calls, dense, operands, plans, quantizers
from fp8gemm.products import linear as linear_plan
from fp8gemm.reference import gemm_reference, quantize_blocks, quantize_rows, quantize_with_transpose
from fp8gemm.scales import block_count, mn_major_pitch
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Addend, Scaling

STREAM = 17


class OnGpu(Tensor):
    """A tensor that says it is on a GPU."""

    def get_device(self) -> int:
        return 0


def _key_of_input(options: Any, x: Tensor) -> Any:
    return calls.key_of_input(options, x.as_subclass(OnGpu))


_INPUTS = {"BFLOAT16": torch.bfloat16, "FLOAT16": torch.float16, "FLOAT32": torch.float32}


def _read(address: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """A copy of what lies at an address, gaps between rows too."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    flat = torch.empty(count, dtype=dtype)
    ctypes.memmove(flat.data_ptr(), address, count * dtype.itemsize)
    return flat.as_strided(tuple(shape), tuple(strides))


def _write(address: int, values: Tensor, strides: Sequence[int]) -> None:
    """Put values to an address; gaps stay as they are."""
    there = _read(address, values.dtype, values.shape, strides).copy_(values)
    ctypes.memmove(address, there.data_ptr(), there.untyped_storage().nbytes())


@dataclass(frozen=True)
class Launched:
    """What was launched, and where its input was."""

    label: str
    stream: int
    programmatic: bool
    address: int


class _Bound:
    """Stands where `BoundLaunch` is."""

    def __init__(self, gpu: PlayedGpu, config: Any, arguments: Arguments[Any], stream: int, grid: int | None) -> None:
        self._gpu, self.config, self.arguments = gpu, config, arguments
        self.stream, self.grid_x = stream, grid or config.grid_x
        gpu.bound += 1

    def __call__(self) -> None:
        self._gpu.execute(self)


class PlayedGpu:
    """See above.

    Attributes:
        stream, device: the current ones; the device is None where the tensors are.
        loads: kernels in the order in which they were loaded.
        launches: in their order.
        bound: launches whose arguments were made.
        encoded: tensor maps that were encoded.
        moved: launches that went through a change of the current device.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.device = STREAM, None
        self.loads: list[KernelRequest] = []
        self.launches: list[Launched] = []
        self.bound = self.encoded = self.moved = 0

        def patch(modules: Sequence[Any], **changes: Any) -> None:
            for module in modules:
                for name, value in changes.items():
                    monkeypatch.setattr(module, name, value)

        patch((operands, linear_plan), uses_reference=self._uses_reference)
        patch((dense, plans), device_chip=lambda index: named_chip("h200"))
        patch((plans,), build_many=lambda requests: None)
        patch((loaded,), _kernels={}, hopper_info=lambda index: None)
        patch((calls, dense, linear_plan, quantizers), current_stream=lambda index: self.stream)
        patch((linear_plan,), key_of_input=_key_of_input)
        patch((dense, linear_plan, quantizers), on_device=lambda index: nullcontext())
        patch((linear_plan,), current_device=lambda: self.device, launch_on=self._launch_on)
        families = (kernel_family, quantize_family)
        patch(families, load=self._load, LaunchConfig=SimpleNamespace, BoundLaunch=self._bind)
        patch((kernel_family,), ensure_context=lambda index: None, max_active_clusters=lambda config: 132)
        patch((kernel_family, dense_family), encode_2d=self._encode)
        patch((swap_ab_family,), encode_column_blocks=self._encode)
        patch((dense_family, swap_ab_family), replace_address=_point)

    def execute(self, bound: _Bound) -> None:
        """What the kernel would do, and make a note of it."""
        request, params = self.loads[bound.config.function], bound.arguments.params
        if isinstance(params, QuantizeParams):
            address = params.x
            _quantise(request, params)
        else:
            assert isinstance(bound.arguments, ArgumentBlock)
            address = _multiply(dict(request.config), bound.arguments)
        self.launches.append(Launched(request.label, bound.stream, bound.config.programmatic, address))

    def _uses_reference(self, tensor: Tensor) -> bool:
        return settings.current().backend == "reference"

    def _load(self, request: KernelRequest, index: int, shared_bytes: int, *, allow_compile: bool) -> Any:
        self.loads.append(request)
        return SimpleNamespace(function=len(self.loads) - 1)

    def _bind(self, config: Any, arguments: Arguments[Any], stream: int, grid: int | None = None) -> _Bound:
        return _Bound(self, config, arguments, stream, grid)

    def _launch_on(self, index: int | None, bound: _Bound) -> None:
        self.moved += 1
        bound()

    def _encode(self, destination: int, *, address: int, **options: Any) -> None:
        self.encoded += 1
        _point(destination, address)


def _point(destination: int, address: int) -> None:
    assert destination % 64 == 0 and address % 16 == 0 and address
    ctypes.c_uint64.from_address(destination).value = address


def _quantise(request: KernelRequest, params: QuantizeParams) -> None:
    rows, k = params.rows, params.k
    x = _read(params.x, _INPUTS[dict(request.config)["input"].name], (rows, k), (params.x_stride, 1))
    of_blocks = request.family == "QuantizeBlocks"
    codes, scales = quantize_blocks(x) if of_blocks else quantize_rows(x)
    _write(params.codes, codes, (k, 1))
    _write(params.scales, scales, scales.stride() if of_blocks else (1, params.scales_pitch))
    if request.family == "QuantizeWithTranspose":
        *_, of_transpose, their_scales = quantize_with_transpose(x)
        _write(params.transposed, of_transpose, of_transpose.stride())
        _write(params.transposed_scales, their_scales, (1, params.transposed_pitch))


def _multiply(config: dict[str, Any], block: ArgumentBlock) -> int:
    """The product of what the block describes; A's address."""
    params, n, k = block.params, config["n"], config["k"]
    m, blocks = params.m, block_count(k)
    map_a, tail_a, map_scales, map_b, tail_b, map_scales_b, map_d = (
        int(ctypes.c_uint64.from_address(getattr(block, f"tensor_map_{name}")).value)
        for name in ("a", "a_tail", "scales_a", "b", "b_tail", "scales_b", "d")
    )
    assert tail_a in (0, map_a) and tail_b in (0, map_b) and map_d in (0, params.d)
    pitch = params.scales_a_stride_k if params.scales_a else mn_major_pitch(m)
    a, b = (_read(at, torch.float8_e4m3fn, (rows, k), (k, 1)) for at, rows in ((map_a, m), (map_b, n)))
    scales_a = _read(params.scales_a or map_scales, torch.float32, (m, blocks), (1, pitch))
    if config.get("scaling") is Scaling.ROW:
        scales_b = _read(map_scales_b, torch.float32, (n, blocks), (1, mn_major_pitch(n)))
    else:
        scales_b = _read(params.scales_b, torch.float32, (block_count(n), blocks), (blocks, 1))
    dtype = None if config["bias"] is Addend.NONE else getattr(torch, config["bias"].value)
    bias = None if dtype is None else _read(params.bias, dtype, (n,), (1,))
    out_dtype = getattr(torch, config["output"].value)
    out = gemm_reference(a, scales_a, b, scales_b, bias=bias, out_dtype=out_dtype)
    _write(params.d, out, (params.d_stride_m, params.d_stride_n))
    return map_a
