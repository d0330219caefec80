"""The dense block-scaled GEMM: check, choose a kernel, launch."""

from __future__ import annotations

import copy
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fp8gemm import operands, settings
from fp8gemm.dispatch import kernel_for, launch
from fp8gemm.driver.device import hopper_info
from fp8gemm.errors import InputError
from fp8gemm.families.catalogue import kernel_request
from fp8gemm.families.kernel import GemmKernel
from fp8gemm.jit.build import build_many
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.hopper import Chip, chip_of_device, limited_chip
from fp8gemm.tuning.problem import Addend, Problem
from fp8gemm.tuning.select import config_by_m

MAX_PLANNED_M = 2**20
"""Largest M that a plan covers; a larger one is a matter for `gemm`, whose cost then does not matter."""


def gemm(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
) -> Tensor:
    """``D[m, n] = sum_kb scales_a[m, kb] scales_b[n / 128, kb] sum_{k in kb} a[m, k] b[n, k] (+ c[m, n]) (+ bias[n])``.

    Sums are FP32, K blocks in ascending order, then C, then the bias; the output is rounded once, to nearest even.

    On a Hopper GPU this launches a kernel on the current stream of the tensors' device; CPU tensors, and any with
    ``FP8GEMM_BACKEND=reference``, go to `fp8gemm.reference.gemm_reference`.

    Args:
        a: (M, K) float8_e4m3fn, K contiguous and a multiple of 16; rows any multiple of 16 bytes apart. M may be 0.
        scales_a: (M, ceil(K/128)) float32 multipliers. MN-major ones (strides (1, align(M, 4))) are read in place;
            any other layout is copied first.
        b: (N, K) float8_e4m3fn, laid out like ``a``.
        scales_b: float32 multipliers: (ceil(N/128), ceil(K/128)), contiguous, one per 128x128 block; or
            (N, ceil(K/128)), one per row and 128 columns, ``scales_b[n, kb]`` above, laid out like ``scales_a``.
        c: (M, N) bfloat16 or float32 to add, of any strides.
        bias: (N,) bfloat16 or float32 to add to every row, contiguous.
        out: (M, N) to write to, of any strides, in memory that no input occupies; but it may be ``c`` itself, to
            accumulate in place. TMA writes it if its rows are contiguous and its base, row pitch and row length are
            multiples of 16 bytes, and if rows of ``c`` are contiguous and its base and row pitch multiples of two
            elements; a slower element-wise store otherwise. A new tensor without it.
        out_dtype: bfloat16, float16 (overflow is Inf) or float32; that of ``out`` by default, bfloat16 without ``out``.
        batch_invariant: whether a row of the result has the same bits whatever M and the other rows are; some shapes
            are then slower. ``FP8GEMM_BATCH_INVARIANT`` by default.

    Returns:
        ``out``, or a new (M, N) tensor, row-major.

    Raises:
        InputError: an operand is not as described; nothing was launched.
        UnsupportedDeviceError: the tensors are on a GPU that is not Hopper.
        CompileError, CacheMissError, DriverError: the kernel could not be built, found or launched.
    """
    if out_dtype is None:
        out_dtype = torch.bfloat16 if out is None else out.dtype
    output = operands.output_type(out_dtype)
    scaling = operands.check_b(b, scales_b)
    operands.check_a(a, scales_a, b)
    c_type = Addend.NONE if c is None else operands.check_c(c, a, b)
    bias_type = Addend.NONE if bias is None else operands.check_bias(bias, b)
    m, (n, k) = a.shape[0], b.shape
    if out is None:
        out = torch.empty((m, n), dtype=out_dtype, device=a.device)
    else:
        operands.check_output(out, (m, n), out_dtype, b)
        operands.check_memory(out, c, a=a, scales_a=scales_a, b=b, scales_b=scales_b, bias=bias)
    if _uses_reference(a):
        return out.copy_(gemm_reference(a, scales_a, b, scales_b, c=c, bias=bias, out_dtype=out_dtype))
    if m:
        if batch_invariant is None:
            batch_invariant = settings.current().batch_invariant
        store = operands.store_kind(out, c)
        problem = Problem(m, n, k, output, store, scaling, c_type, bias_type, batch_invariant)
        index = a.device.index
        launch(kernel_for(problem, device_chip(index), index), a, scales_a, b, scales_b, out=out, c=c, bias=bias)
    return out


def plan(
    b: Tensor,
    scales_b: Tensor,
    *,
    max_m: int,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    c_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    static_weights: bool = False,
) -> Plan:
    """Bind a weight to its kernels, compiled or fetched and loaded now, so that calls for any M <= max_m only launch.

    Args and errors are those of `gemm`; weight and bias are checked here, once. ``max_m`` is 1 to 2^20; ``c_dtype`` is
    that of the C that every call brings, None where there is none.

    ``static_weights`` promises that whenever the plan is called, no kernel that is still queued or running on the GPU
    writes ``b`` or ``scales_b``. With programmatic dependent launch (``FP8GEMM_PDL``, as it is when the plan is made) a
    small-M kernel then streams the weight while the kernel ahead of it ends. Activations, C and the bias may always
    come from that kernel. Small-M kernels are chosen for that, so that bits may differ from those of other plans.
    """
    if batch_invariant is None:
        batch_invariant = settings.current().batch_invariant
    return Plan(
        b,
        scales_b,
        bias,
        max_m=max_m,
        out_dtype=out_dtype,
        c_dtype=c_dtype,
        batch_invariant=batch_invariant,
        static_weights=static_weights,
    )


@dataclass(frozen=True)
class _Binding:
    """What a plan found and loaded for a weight as it was; never changed, only replaced.

    Attributes:
        identity: where and how the weight, its scales and the bias lay.
        chip: what tiles were chosen for; None on the reference backend.
        problem: N, K, types and the store of a new output, ``c`` packed; None on the reference backend.
        steps: the largest M of each kernel, ascending.
        kernels: one for each step.
    """

    identity: tuple[object, ...]
    chip: Chip | None = None
    problem: Problem | None = None
    steps: tuple[int, ...] = ()
    kernels: tuple[GemmKernel, ...] = ()


class Plan:
    """A weight bound to its loaded kernels for every M up to ``max_m``; make one with `plan`. Threads may share it.

    Weight and bias may move (``.data = ...``, in-place reloads): their addresses are read at each call and checked when
    new. A copy by `copy.deepcopy` or `pickle` is another plan, made of its own copies of the tensors.

    Attributes:
        b, scales_b, bias, max_m, out_dtype, c_dtype, batch_invariant, static_weights: what it was made with.
    """

    def __init__(
        self,
        b: Tensor,
        scales_b: Tensor,
        bias: Tensor | None,
        *,
        max_m: int,
        out_dtype: torch.dtype,
        c_dtype: torch.dtype | None,
        batch_invariant: bool,
        static_weights: bool,
    ) -> None:
        if not 1 <= max_m <= MAX_PLANNED_M:
            raise InputError(f"max_m: expected 1 to {MAX_PLANNED_M}, got {max_m}")
        self._output = operands.output_type(out_dtype)
        self._c_type = operands.addend("c_dtype", c_dtype)
        self.b, self.scales_b, self.bias, self.max_m = b, scales_b, bias, max_m
        self.out_dtype, self.c_dtype, self.batch_invariant = out_dtype, c_dtype, batch_invariant
        self.static_weights = static_weights
        self._binding = self._bind()

    def __call__(self, a: Tensor, scales_a: Tensor, *, c: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """The product for activations ``a`` (M, K), ``scales_a`` (M, ceil(K/128)); see `gemm`.

        Raises:
            InputError: an operand is not as `gemm` describes, M exceeds ``max_m``, or ``c`` is not of the plan's
                ``c_dtype``; nothing was launched.
        """
        binding = self._current_binding()
        b, scales_b, bias = self.b, self.scales_b, self.bias
        operands.check_a(a, scales_a, b)
        m, n = a.shape[0], b.shape[0]
        if m > self.max_m:
            raise InputError(f"a: expected at most max_m = {self.max_m} rows, got {m}")
        c_dtype = None if c is None else c.dtype
        if c_dtype != self.c_dtype:
            raise InputError(f"c: expected {self.c_dtype}, the plan's c_dtype, got {c_dtype}")
        if c is not None:
            operands.check_c(c, a, b)
        if out is None:
            out = torch.empty((m, n), dtype=self.out_dtype, device=a.device)
        else:
            operands.check_output(out, (m, n), self.out_dtype, b)
            operands.check_memory(out, c, a=a, scales_a=scales_a, b=b, scales_b=scales_b, bias=bias)
        if binding.problem is None or binding.chip is None:
            return out.copy_(gemm_reference(a, scales_a, b, scales_b, c=c, bias=bias, out_dtype=self.out_dtype))
        if m:
            store = operands.store_kind(out, c)
            if store is binding.problem.store:
                kernel = binding.kernels[bisect_left(binding.steps, m)]
            else:
                kernel = kernel_for(replace(binding.problem, m=m, store=store), binding.chip, a.device.index)
            launch(kernel, a, scales_a, b, scales_b, out=out, c=c, bias=bias, static_weights=self.static_weights)
        return out

    # Kernels belong to a process and its GPUs: a copy is made anew, of copies of the tensors.

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return type(self)(*copy.deepcopy((self.b, self.scales_b, self.bias), memo), **self._options())

    def __reduce__(self) -> tuple[Any, ...]:
        # NOTE: as bytes, because what pickle writes of an FP8 tensor torch cannot load again.
        return _from_bytes, (type(self), self.b.view(torch.uint8), self.scales_b, self.bias, self._options())

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLAN_OPTIONS}

    def kernel_for(self, m: int) -> GemmKernel | None:
        """The kernel that M rows into a new output are computed with; None on the reference backend."""
        binding = self._current_binding()
        return binding.kernels[bisect_left(binding.steps, m)] if binding.kernels else None

    def _current_binding(self) -> _Binding:
        if self._binding.identity != self._identity():
            self._binding = self._bind()
        return self._binding

    def _identity(self) -> tuple[object, ...]:
        b, scales_b, bias = self.b, self.scales_b, self.bias
        of_weight = (b.data_ptr(), b.shape, b.stride(), b.dtype, b.device)
        of_scales = (scales_b.data_ptr(), scales_b.shape, scales_b.stride(), scales_b.dtype)
        of_bias = () if bias is None else (bias.data_ptr(), bias.shape, bias.stride(), bias.dtype)
        return of_weight, of_scales, of_bias

    def _bind(self) -> _Binding:
        identity = self._identity()
        scaling = operands.check_b(self.b, self.scales_b)
        bias_type = Addend.NONE if self.bias is None else operands.check_bias(self.bias, self.b)
        if _uses_reference(self.b):
            return _Binding(identity)
        device_index = self.b.device.index
        chip = device_chip(device_index)
        n, k = self.b.shape
        # A packed C never decides: where TMA can write a new output, N is even, and so are C's rows.
        store = operands.store_kind(torch.empty((1, n), dtype=self.out_dtype, device=self.b.device))
        problem = Problem(self.max_m, n, k, self._output, store, scaling, self._c_type, bias_type)
        problem = replace(problem, batch_invariant=self.batch_invariant, static_weights=self.static_weights)
        choices = config_by_m(problem, chip)
        if settings.current().jit == "compile":
            # All at once, because NVRTC compiles in parallel; those in the cache cost next to nothing.
            build_many([kernel_request(problem, config) for config in dict.fromkeys(config for _, config in choices)])
        steps = tuple(m for m, _ in choices)
        kernels = tuple(kernel_for(replace(problem, m=m), chip, device_index) for m in steps)
        return _Binding(identity, chip, problem, steps, kernels)


_PLAN_OPTIONS = ("max_m", "out_dtype", "c_dtype", "batch_invariant", "static_weights")


def _from_bytes(
    made: type[Plan], codes: Tensor, scales_b: Tensor, bias: Tensor | None, options: dict[str, Any]
) -> Plan:
    return made(codes.view(torch.float8_e4m3fn), scales_b, bias, **options)


def device_chip(device_index: int) -> Chip:
    """The chip that tiles are chosen for: the GPU's, less the SMs that the settings keep for others.

    Raises:
        UnsupportedDeviceError: the GPU is not Hopper.
    """
    info = hopper_info(device_index)
    chip = chip_of_device(info.name, info.num_sms, info.l2_bytes)
    limit = settings.current().num_sms
    return chip if limit is None else limited_chip(chip, limit)


def _uses_reference(tensor: Tensor) -> bool:
    return tensor.device.type != "cuda" or settings.current().backend == "reference"
