"""A weight bound to its kernels before the first product is asked for."""

from __future__ import annotations

import copy
from bisect import bisect_left
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fp8gemm import settings
from fp8gemm.checks import memory
from fp8gemm.checks.dtypes import ADDENDS, OUTPUTS, addend, dtype_of
from fp8gemm.checks.operands import check_b, check_bias, check_call
from fp8gemm.checks.tensors import check_whole
from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.gemm import SingleKernel
from fp8gemm.kernels.loaded import device_chip, kernel_for
from fp8gemm.kernels.recording import record_problem
from fp8gemm.products import operands
from fp8gemm.products.calls import UNREADABLE, Key, RepeatedCalls, key_of_call
from fp8gemm.products.dense import gemm, launch
from fp8gemm.products.watched import goes_to_operator
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Addend, Problem
from fp8gemm.tuning.select import config_by_m

MAX_PLANNED_M = 2**20
"""Largest M that a plan covers; a larger one is a matter for `gemm`, whose cost then does not matter."""


def plan(
    b: Tensor,
    scales_b: Tensor,
    *,
    max_m: int,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | str = torch.bfloat16,
    c_dtype: torch.dtype | str | None = None,
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


_RECENT_CALLS = 64
_WEIGHT, _OPERANDS = "b scales_b bias?", "a scales_a c? out?"


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
    kernels: tuple[SingleKernel, ...] = ()


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
        out_dtype: torch.dtype | str,
        c_dtype: torch.dtype | str | None,
        batch_invariant: bool,
        static_weights: bool,
    ) -> None:
        check_whole("max_m", max_m, 1, MAX_PLANNED_M)
        self.out_dtype = dtype_of("out_dtype", out_dtype, OUTPUTS)
        self.c_dtype = None if c_dtype is None else dtype_of("c_dtype", c_dtype, ADDENDS)
        self._output, self._c_type = OUTPUTS[self.out_dtype], addend("c_dtype", self.c_dtype)
        self.b, self.scales_b, self.bias, self.max_m = b, scales_b, bias, max_m
        self.batch_invariant, self.static_weights = batch_invariant, static_weights
        self._binding = self._bind()
        self._calls = RepeatedCalls(_RECENT_CALLS, by_settings=False)

    def __call__(self, a: Tensor, scales_a: Tensor, *, c: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """The product for activations ``a`` (M, K), ``scales_a`` (M, ceil(K/128)); see `gemm`.

        Raises:
            InputError: an operand is not as `gemm` describes, M exceeds ``max_m``, or ``c`` is not of the plan's
                ``c_dtype``; nothing was launched.
        """
        if is_dynamo_compiling():
            return self._traced(a, scales_a, c, out)
        # Of the weight an address is enough where `out` has its N: its K is that of `a`, and a weight of another dtype
        # is not at the same place. The kernels are the plan's, whatever the settings say.
        bias = self.bias
        try:
            weight = (
                self.b.data_ptr(),
                self.scales_b.data_ptr(),
                None if bias is None else (bias.data_ptr(), bias.dtype),
                self.b.shape if out is None else None,
            )
        except UNREADABLE:
            return self._multiply(None, a, scales_a, c, out, None)
        key = key_of_call(weight, a, scales_a, c, out)
        done, made = self._calls.repeat(key, out)
        return self._multiply(key, a, scales_a, c, out, made) if done is None else done

    def _multiply(
        self,
        key: Key | None,
        a: Tensor,
        scales_a: Tensor,
        c: Tensor | None,
        out: Tensor | None,
        made: Tensor | None,
    ) -> Tensor:
        """A call from its checks on; ``made`` is memory for its output, if there is some already."""
        b, scales_b, bias = self.b, self.scales_b, self.bias
        if goes_to_operator(_OPERANDS, a, scales_a, c, out) or goes_to_operator(_WEIGHT, b, scales_b, bias):
            return self._traced(a, scales_a, c, out)
        binding = self._current_binding()
        check_call(a, scales_a, b, c, out, self.out_dtype)
        m, n = a.shape[0], b.shape[0]
        if m > self.max_m:
            raise InputError(f"a: expected at most max_m = {self.max_m} rows, got {m}")
        c_dtype = None if c is None else c.dtype
        if c_dtype != self.c_dtype:
            raise InputError(f"c: expected {self.c_dtype}, the plan's c_dtype, got {c_dtype}")
        memory.check_addresses(a=a, scales_a=scales_a, c=c, out=out)
        given = out is not None
        if out is None:
            out = torch.empty((m, n), dtype=self.out_dtype, device=a.device) if made is None else made
        else:
            memory.check_memory(out, c, a=a, scales_a=scales_a, b=b, scales_b=scales_b, bias=bias)
        if binding.problem is None or binding.chip is None:
            return out.copy_(gemm_reference(a, scales_a, b, scales_b, c=c, bias=bias, out_dtype=self.out_dtype))
        if not m:
            return out
        store = operands.store_kind(out, c)
        if store is binding.problem.store:
            kernel = binding.kernels[bisect_left(binding.steps, m)]
        else:
            kernel = kernel_for(replace(binding.problem, m=m, store=store), binding.chip, a.device.index)
        static = self.static_weights
        bound = launch(kernel, a, scales_a, b, scales_b, out=out, c=c, bias=bias, static_weights=static)
        if bound is not None:
            self._calls.keep(key, out, bound, given=given)
        return out

    def _traced(self, a: Tensor, scales_a: Tensor, c: Tensor | None, out: Tensor | None) -> Tensor:
        """A call as a node of a graph that is being traced."""
        return gemm(
            a,
            scales_a,
            self.b,
            self.scales_b,
            c=c,
            bias=self.bias,
            out=out,
            out_dtype=self.out_dtype,
            batch_invariant=self.batch_invariant,
            static_weights=self.static_weights,
        )

    # Kernels belong to a process and its GPUs: a copy is made anew, of copies of the tensors.
    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return type(self)(*copy.deepcopy((self.b, self.scales_b, self.bias), memo), **self._options())

    def __reduce__(self) -> tuple[Any, ...]:
        # NOTE: as bytes, because what pickle writes of an FP8 tensor torch cannot load again.
        return _from_bytes, (type(self), self.b.view(torch.uint8), self.scales_b, self.bias, self._options())

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLAN_OPTIONS}

    def kernel_for(self, m: int) -> SingleKernel | None:
        """The kernel that M rows into a new output are computed with; None on the reference backend.

        Beyond ``max_m`` it is that of ``max_m``, since any kernel is right for any M.
        """
        binding = self._current_binding()
        return binding.kernels[min(bisect_left(binding.steps, m), len(binding.steps) - 1)] if binding.kernels else None

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
        scaling = check_b(self.b, self.scales_b)
        bias_type = Addend.NONE if self.bias is None else check_bias(self.bias, self.b)
        if goes_to_operator(_WEIGHT, self.b, self.scales_b, self.bias):
            return _Binding(())  # whoever calls it goes there too
        identity = self._identity()
        memory.check_addresses(b=self.b, scales_b=self.scales_b, bias=self.bias)
        if operands.uses_reference(self.b):
            return _Binding(identity)
        device_index = self.b.device.index
        chip = device_chip(device_index)
        n, k = self.b.shape
        # A packed C never decides: where TMA can write a new output, N is even, and so are C's rows.
        store = operands.store_kind(torch.empty((1, n), dtype=self.out_dtype, device=self.b.device))
        problem = Problem(self.max_m, n, k, self._output, store, scaling, self._c_type, bias_type)
        problem = replace(problem, batch_invariant=self.batch_invariant, static_weights=self.static_weights)
        record = settings.current().record
        if record is not None:
            record_problem(record, problem)  # up to the largest M first, so that one line will do
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
