"""The dense block-scaled GEMM: check, choose a kernel, launch."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fp8gemm import operands, settings
from fp8gemm.driver.device import hopper_info
from fp8gemm.errors import InputError
from fp8gemm.families.dense_1d2d import DenseKernel, kernel_request
from fp8gemm.jit.build import build_many, is_ready
from fp8gemm.jit.kernel import is_loaded
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import Chip, chip_of_device
from fp8gemm.tuning.problem import Problem, StoreKind
from fp8gemm.tuning.select import config_by_m, ranked_configs

MAX_PLANNED_M = 2**20
"""Largest M that a plan covers; a larger one is a matter for `gemm`, whose cost then does not matter."""

_KernelKey = tuple[int, int, TileConfig, StoreKind, int, int]
_kernels: dict[_KernelKey, DenseKernel] = {}


def gemm(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """``D[m, n] = sum_kb scales_a[m, kb] scales_b[n / 128, kb] sum_{k in kb} a[m, k] b[n, k]``, FP32 accumulation.

    On a Hopper GPU this launches a kernel on the current stream of the tensors' device; CPU tensors, and any with
    ``FP8GEMM_BACKEND=reference``, go to `fp8gemm.reference.gemm_reference`.

    Args:
        a: (M, K) float8_e4m3fn, K contiguous and a multiple of 16; rows any multiple of 16 bytes apart. M may be 0.
        scales_a: (M, ceil(K/128)) float32 multipliers. MN-major ones (strides (1, align(M, 4))) are read in place;
            any other layout is copied first.
        b: (N, K) float8_e4m3fn, laid out like ``a``.
        scales_b: (ceil(N/128), ceil(K/128)) float32 multipliers, contiguous.
        out: (M, N) to write to, of any strides; TMA writes it if its rows are contiguous and its base and row pitch are
            multiples of 16 bytes, a slower element-wise store otherwise. A new tensor without it.
        out_dtype: bfloat16.

    Returns:
        ``out``, or a new (M, N) tensor, row-major.

    Raises:
        InputError: an operand is not as described; nothing was launched.
        UnsupportedError: no kernel writes ``out_dtype``.
        UnsupportedDeviceError: the tensors are on a GPU that is not Hopper.
        CompileError, CacheMissError, DriverError: the kernel could not be built, found or launched.
    """
    output = operands.output_type(out_dtype)
    operands.check_weight(b, scales_b)
    operands.check_activation(a, scales_a, b)
    if out is None:
        out = _new_output(a, b, out_dtype)
    else:
        operands.check_output(out, a, b, out_dtype)
    if _uses_reference(a):
        return out.copy_(gemm_reference(a, scales_a, b, scales_b, out_dtype=out_dtype))
    if out.shape[0]:
        problem = Problem(a.shape[0], b.shape[0], b.shape[1], output, operands.store_kind(out))
        _launch(_kernel_for(problem, device_chip(a.device.index), a.device.index), a, scales_a, b, scales_b, out)
    return out


def plan(b: Tensor, scales_b: Tensor, *, max_m: int, out_dtype: torch.dtype = torch.bfloat16) -> Plan:
    """Bind a weight to its kernels, compiled or fetched and loaded now, so that calls for any M <= max_m only launch.

    Args and errors are those of `gemm`; the weight is checked here, once. ``max_m`` is 1 to 2^20.
    """
    return Plan(b, scales_b, max_m=max_m, out_dtype=out_dtype)


@dataclass(frozen=True)
class _Binding:
    """What a plan found and loaded for a weight as it was; never changed, only replaced.

    Attributes:
        identity: where and how the weight and its scales lay.
        chip: what tiles were chosen for; None on the reference backend.
        problem: N, K, output and the store of a new output; None on the reference backend.
        steps: the largest M of each kernel, ascending.
        kernels: one for each step.
    """

    identity: tuple[object, ...]
    chip: Chip | None = None
    problem: Problem | None = None
    steps: tuple[int, ...] = ()
    kernels: tuple[DenseKernel, ...] = ()


class Plan:
    """A weight bound to its loaded kernels for every M up to ``max_m``; make one with `plan`. Threads may share it.

    The weight may move (``.data = ...``, in-place reloads): its address is read at each call and checked when new.
    """

    def __init__(self, b: Tensor, scales_b: Tensor, *, max_m: int, out_dtype: torch.dtype) -> None:
        if not 1 <= max_m <= MAX_PLANNED_M:
            raise InputError(f"max_m: expected 1 to {MAX_PLANNED_M}, got {max_m}")
        self._output = operands.output_type(out_dtype)
        self.b, self.scales_b, self.max_m, self.out_dtype = b, scales_b, max_m, out_dtype
        self._binding = self._bind()

    def __call__(self, a: Tensor, scales_a: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The product for activations ``a`` (M, K), ``scales_a`` (M, ceil(K/128)); see `gemm`.

        Raises:
            InputError: an operand is not as `gemm` describes, or M exceeds ``max_m``; nothing was launched.
        """
        binding = self._current_binding()
        operands.check_activation(a, scales_a, self.b)
        m = a.shape[0]
        if m > self.max_m:
            raise InputError(f"a: expected at most max_m = {self.max_m} rows, got {m}")
        if out is None:
            out = _new_output(a, self.b, self.out_dtype)
        else:
            operands.check_output(out, a, self.b, self.out_dtype)
        if binding.problem is None or binding.chip is None:
            return out.copy_(gemm_reference(a, scales_a, self.b, self.scales_b, out_dtype=self.out_dtype))
        if m:
            store = operands.store_kind(out)
            if store is binding.problem.store:
                kernel = binding.kernels[bisect_left(binding.steps, m)]
            else:
                kernel = _kernel_for(replace(binding.problem, m=m, store=store), binding.chip, a.device.index)
            _launch(kernel, a, scales_a, self.b, self.scales_b, out)
        return out

    def kernel_for(self, m: int) -> DenseKernel | None:
        """The kernel that M rows into a new output are computed with; None on the reference backend."""
        binding = self._current_binding()
        return binding.kernels[bisect_left(binding.steps, m)] if binding.kernels else None

    def _current_binding(self) -> _Binding:
        if self._binding.identity != self._identity():
            self._binding = self._bind()
        return self._binding

    def _identity(self) -> tuple[object, ...]:
        b, scales_b = self.b, self.scales_b
        return b.device, b.shape, b.data_ptr(), b.stride(), scales_b.data_ptr(), scales_b.stride()

    def _bind(self) -> _Binding:
        identity = self._identity()
        operands.check_weight(self.b, self.scales_b)
        if _uses_reference(self.b):
            return _Binding(identity)
        device_index = self.b.device.index
        chip = device_chip(device_index)
        new_output = torch.empty((1, self.b.shape[0]), dtype=self.out_dtype, device=self.b.device)
        n, k = self.b.shape
        problem = Problem(self.max_m, n, k, self._output, operands.store_kind(new_output))
        choices = config_by_m(problem, chip)
        if settings.current().jit == "compile":
            # All at once, because NVRTC compiles in parallel; those in the cache cost next to nothing.
            build_many([kernel_request(problem, config) for config in dict.fromkeys(config for _, config in choices)])
        steps = tuple(m for m, _ in choices)
        kernels = tuple(_kernel_for(replace(problem, m=m), chip, device_index) for m in steps)
        return _Binding(identity, chip, problem, steps, kernels)


def device_chip(device_index: int) -> Chip:
    """The chip that tiles are chosen for: the GPU's, less the SMs that the settings keep for others.

    Raises:
        UnsupportedDeviceError: the GPU is not Hopper.
    """
    info = hopper_info(device_index)
    cap = settings.current().num_sms
    num_sms = info.num_sms if cap is None else min(info.num_sms, cap)
    return chip_of_device(info.name, num_sms, info.l2_bytes)


def _new_output(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty((a.shape[0], b.shape[0]), dtype=dtype, device=a.device)


def _uses_reference(tensor: Tensor) -> bool:
    return tensor.device.type != "cuda" or settings.current().backend == "reference"


def _kernel_for(problem: Problem, chip: Chip, device_index: int) -> DenseKernel:
    """The loaded kernel of least predicted cost or, under the policy ``nearest``, the best of those that are ready."""
    ranked = ranked_configs(problem, chip)

    def key(config: TileConfig) -> _KernelKey:
        return problem.n, problem.k, config, problem.store, device_index, chip.num_sms

    found = _kernels.get(key(ranked[0]))
    if found is not None:
        return found
    may_compile = settings.current().jit == "compile"
    config = ranked[0] if settings.current().jit != "nearest" else _nearest_ready(problem, ranked, device_index)
    found = _kernels.get(key(config))
    if found is None:
        found = DenseKernel(problem, config, device_index=device_index, num_sms=chip.num_sms, allow_compile=may_compile)
        found = _kernels.setdefault(key(config), found)
    return found


def _nearest_ready(problem: Problem, ranked: tuple[TileConfig, ...], device_index: int) -> TileConfig:
    with torch.cuda.device(device_index):
        capturing = torch.cuda.is_current_stream_capturing()
    for config in ranked:
        request = kernel_request(problem, config)
        if is_loaded(request, device_index) if capturing else is_ready(request):
            return config
    return ranked[0]  # which is then missed in the open


def _launch(kernel: DenseKernel, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, out: Tensor) -> None:
    scales_a = operands.tma_scales(scales_a)
    here = torch.cuda.current_device() == a.device.index
    with nullcontext() if here else torch.cuda.device(a.device.index):
        kernel(a, scales_a, b, scales_b, out=out, stream=torch.cuda.current_stream(a.device.index).cuda_stream)
