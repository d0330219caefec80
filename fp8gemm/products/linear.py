"""A linear layer's two launches, quantise and multiply, found again in a few microseconds for an input seen before."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.dtypes import INPUTS, listed
from fp8gemm.checks.tensors import check_kept, check_no_gradient, check_tensor, found
from fp8gemm.driver.current import current_device, current_stream, launch_on, on_device
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.errors import InputError
from fp8gemm.kernels.gemm import SingleKernel
from fp8gemm.kernels.loaded import quantizer_for
from fp8gemm.kernels.quantize import ROWS_OF_WARP, QuantizeKernel, QuantizeSource, rows_of_warp
from fp8gemm.products.calls import Recent, key_of_input
from fp8gemm.products.operands import contiguous_rows, uses_reference
from fp8gemm.products.plans import Plan, plan
from fp8gemm.products.quantizers import ALIGNMENT, rows_quantizer
from fp8gemm.reference import gemm_reference, quantize_rows
from fp8gemm.scales import quantized_bytes, quantized_in, scales_offset
from fp8gemm.sizes import check_size

_CALLS, _SHAPES, _PLACES = 256, 64, 8


Launches = tuple[BoundLaunch, BoundLaunch]
"""Quantise, multiply."""


class _Model(NamedTuple):
    """Launches that others for inputs of the same shape and the same weight differ from by addresses alone."""

    settings: settings.Settings
    weight: tuple[object, ...]
    quantizer: QuantizeKernel
    kernel: SingleKernel
    launches: Launches


class _Layout:
    """Of one repeated input: how output and workspace are made, and the launches by where these lie."""

    __slots__ = ("device", "dtype", "launches", "scales_offset", "settings", "shape", "strides", "workspace")

    def __init__(self, x: Tensor, n: int) -> None:
        rows, k = math.prod(x.shape[:-1]), x.shape[-1]
        self.shape = (*x.shape[:-1], n)
        self.strides = torch.empty(self.shape, device="meta").stride()
        self.dtype, self.device, self.settings = x.dtype, x.device, settings.current()
        self.scales_offset = scales_offset(rows, k)
        self.workspace = (quantized_bytes(rows, k),)
        self.launches: Recent[Launches] = Recent(_PLACES)


class LinearPlan:
    """``y = x @ weight.T + bias``, x quantised on the way: plans by dtype, and recent calls. Threads may share it; a
    copy is a plan like a new one.

    Args:
        max_m: rows up to which kernels are loaded ahead; more rows are computed with the kernel of the most.
        batch_invariant: as in `fp8gemm.gemm`.
    """

    def __init__(self, *, max_m: int, batch_invariant: bool | None) -> None:
        self._max_m, self._batch_invariant = max_m, batch_invariant
        self._plans: dict[torch.dtype, tuple[settings.Settings, Plan]] = {}
        self._layouts: Recent[_Layout] = Recent(_CALLS)
        self._models: Recent[_Model] = Recent(_SHAPES)
        # NOTE: weakly, because who shards a layer replaces its weight to have the memory.
        self._settled: ReferenceType[Tensor] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LinearPlan, max_m=self._max_m, batch_invariant=self._batch_invariant), ()

    def settle(self, weight: Tensor) -> None:
        """From now on no kernel that is queued or running will write this ``weight`` while a product reads it."""
        self._settled = ref(weight)

    def is_settled(self, weight: Tensor) -> bool:
        """Whether that was said of it: kernels are promised a static weight then."""
        return self._settled is not None and self._settled() is weight

    def prepare(self, weight: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Plan:
        """Compile or fetch, and load, what inputs of ``dtype`` need under the settings in force; what is ready already
        costs nothing.

        Raises:
            UnsupportedDeviceError: the GPU is not Hopper.
            CacheMissError, CompileError, DriverError: a kernel could not be found, built or loaded.
        """
        in_force = settings.current()
        chosen_by, found = self._plans.get(dtype, (None, None))
        same = found is not None and found.b is weight and found.scales_b is scales and found.bias is bias
        settled = self.is_settled(weight)
        if found is None or not same or found.static_weights is not settled or chosen_by != in_force:
            index = weight.device.index
            for rows in ROWS_OF_WARP:
                quantizer_for(rows_quantizer(QuantizeSource.PLAIN, dtype, rows), index)
            found = plan(
                weight,
                scales,
                max_m=self._max_m,
                bias=bias,
                out_dtype=dtype,
                batch_invariant=self._batch_invariant,
                static_weights=settled,
            )
            self._plans[dtype] = in_force, found
        return found

    def __call__(
        self, x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """The layer's output.

        Args:
            x: (..., K) bfloat16, float16 or float32, where the weight is.
            weight, scales, bias: (N, K) e4m3, its 128x128 scales, and (N,) or None; checked, all in one place.
            out: what is written, as it is returned, in memory that lies as a new tensor's does and is no input's; not
                checked. A new tensor without it.

        Returns:
            (..., N) of x's dtype, contiguous.

        Raises:
            InputError: ``x`` is not as described, or requires a gradient while gradients are enabled.
        """
        of_weight = (
            weight.data_ptr(),
            scales.data_ptr(),
            # In freed memory one of another dtype may come to lie.
            None if bias is None else (bias.data_ptr(), bias.dtype),
            # There, too, what is gathered for each call.
            self.is_settled(weight),
        )
        key = key_of_input(of_weight, x)
        layout = None if key is None else self._layouts.get(key)
        if layout is None or layout.settings is not settings.current():
            check_no_gradient("x", x)
            check_input(x, weight)
            if not x.numel():
                return x.new_empty((*x.shape[:-1], weight.shape[0])) if out is None else out
            if uses_reference(weight):
                product = self._reference(x, weight, scales, bias)
                return product if out is None else out.copy_(product)
            if not _has_rows(x):
                return self(x.contiguous(), weight, scales, bias, out)
            if x.data_ptr() % ALIGNMENT:
                return self(x.clone(), weight, scales, bias, out)
            layout = _Layout(x, weight.shape[0])
            if key is not None:
                self._layouts.keep(key, layout)
        if out is None:
            out = torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=layout.device)
        workspace = torch.empty_strided(layout.workspace, (1,), dtype=torch.uint8, device=layout.device)
        place = out.data_ptr(), workspace.data_ptr()
        launches = layout.launches.get(place)
        if launches is None:
            launches = self._launches(layout, x, out, workspace, of_weight, weight, scales, bias)
            layout.launches.keep(place, launches)
        index = layout.device.index
        quantize, multiply = launches
        if current_device() == index:
            quantize()
            multiply()
        else:
            launch_on(index, quantize)
            launch_on(index, multiply)
        return out

    def _reference(self, x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        codes, scales_of_rows = quantize_rows(x.reshape(-1, x.shape[-1]))
        out = gemm_reference(codes, scales_of_rows, weight, scales, bias=bias, out_dtype=x.dtype)
        return out.view(*x.shape[:-1], weight.shape[0])

    def _launches(
        self,
        layout: _Layout,
        x: Tensor,
        out: Tensor,
        workspace: Tensor,
        of_weight: tuple[object, ...],
        weight: Tensor,
        scales: Tensor,
        bias: Tensor | None,
    ) -> Launches:
        """Those for an input, from others that differ by addresses alone if there are any."""
        index = x.device.index
        form = x.shape, x.stride(), x.dtype, index
        model = self._models.get(form)
        if model is None or model.weight != of_weight or model.settings is not layout.settings:
            plan = self.prepare(weight, scales, bias, x.dtype)
            model = self._bind(layout, x, out, workspace, plan, of_weight)
            self._models.keep(form, model)
            return model.launches
        quantize, multiply = model.launches
        codes, stream = workspace.data_ptr(), current_stream(index)
        of_rows = codes + layout.scales_offset
        return (
            model.quantizer.rebind(quantize, x=x.data_ptr(), codes=codes, scales=of_rows, stream=stream),
            model.kernel.rebind(multiply, a=codes, scales_a=of_rows, out=out.data_ptr(), stream=stream),
        )

    def _bind(
        self, layout: _Layout, x: Tensor, out: Tensor, workspace: Tensor, plan: Plan, of_weight: tuple[object, ...]
    ) -> _Model:
        """The first launches for inputs of a shape and a weight."""
        k, n = x.shape[-1], out.shape[-1]
        rows = x.view(-1, k)
        m = rows.shape[0]
        codes, scales = quantized_in(workspace, m, k)
        index = x.device.index
        quantizer = quantizer_for(rows_quantizer(QuantizeSource.PLAIN, x.dtype, rows_of_warp(m, k)), index)
        kernel = plan.kernel_for(m)
        assert kernel is not None, "a plan on a GPU has kernels"
        with on_device(index):
            stream = current_stream(index)
            quantize = quantizer.bind(rows, codes, scales, stream=stream)
            terms, static = (plan.b, plan.scales_b), plan.static_weights
            multiply = kernel.bind(
                codes, scales, *terms, out=out.view(m, n), stream=stream, bias=plan.bias, static_weights=static
            )
        return _Model(layout.settings, of_weight, quantizer, kernel, (quantize, multiply))


def traced_linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    *,
    batch_invariant: bool | None,
    static_weights: bool,
) -> Tensor:
    """What `LinearPlan` computes, by operators: as nodes of a graph, or for tensors that are not plain.

    NOTE: two operators, so that a compiler that merges equal nodes quantises an input of several layers once.
    """
    check_input(x, weight)
    check_no_gradient("x", x)
    rows = x if x.dim() == 2 else x.reshape(-1, weight.shape[1])
    rows = contiguous_rows(rows)
    a, scales_a = torch.ops.fp8gemm.quantize_activation(rows)
    options = rows.dtype, batch_invariant, static_weights
    out: Tensor = torch.ops.fp8gemm.gemm(a, scales_a, weight, scales, None, bias, *options)
    return out.view(*x.shape[:-1], weight.shape[0])


def check_input(x: Tensor, weight: Tensor, k: int | None = None) -> None:
    """``x`` (..., K) is what a layer of this ``weight`` (N, K) takes, gradients aside.

    Args:
        k: that of ``x``, where ranks have parts of its columns; the weight's by default.

    Raises:
        InputError: it is not.
    """
    check_tensor("x", x)
    check_kept("weight", weight)
    k = weight.shape[1] if k is None else k
    if x.dtype not in INPUTS or x.dim() == 0 or x.shape[-1] != k:
        raise InputError(f"x: expected {listed(INPUTS)} of shape (..., {k}) = (..., K), got {found(x)}")
    if x.device != weight.device:
        raise InputError(f"x: expected the device of weight, {weight.device}, got {x.device}")
    check_size("x", "M", math.prod(x.shape[:-1]))


def _has_rows(x: Tensor) -> bool:
    """Whether ``x`` (..., K) can be seen as (M, K) with rows that begin on 16-byte boundaries."""
    try:
        rows = x.view(-1, x.shape[-1])
    except RuntimeError:  # its leading dimensions do not merge
        return False
    pitch = rows.stride(0) * x.element_size() if rows.shape[0] > 1 else 0
    return rows.stride(1) == 1 and pitch % ALIGNMENT == 0
