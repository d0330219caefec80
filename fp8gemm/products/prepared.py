"""Kernels of a block of experts, found and loaded ahead of its first call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.dtypes import INPUTS, OUTPUTS
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.loaded import device_chip, kernel_for, quantizer_for, routing_kernel_for
from fp8gemm.kernels.quantize import ROWS_OF_WARP, QuantizeSource, quantizer_to_rows
from fp8gemm.kernels.routing import (
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    route_and_quantize_request,
    unpermute_request,
)
from fp8gemm.products.quantizers import masked_quantizer, rows_quantizer
from fp8gemm.tuning.grouped import grouped_config_by_m
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.problem import Grouping


def prepare_experts(
    weights: Sequence[Tensor], dtype: torch.dtype, *, max_m: int, some: bool, batch_invariant: bool | None
) -> None:
    """Compile or fetch, and load, what is launched from tokens of ``dtype`` to the sums of their experts.

    Args:
        weights: (G, 2I, H) and (G, H, I) on a GPU.
        dtype: bfloat16, float16 or float32.
        max_m: rows of a typical expert, up to which.
        some: whether these are only some of a layer's experts, as in `fp8gemm.nn.experts_routed`.
        batch_invariant: as in `fp8gemm.gemm_grouped`.

    Raises:
        UnsupportedDeviceError: the GPU is not Hopper.
        CacheMissError, CompileError, DriverError: a kernel could not be found, built or loaded.
    """
    index, in_force = weights[0].device.index, settings.current()
    chip = device_chip(index)
    invariant = in_force.batch_invariant if batch_invariant is None else batch_invariant
    choices = []
    for groups, n, k in (weight.shape for weight in weights):
        output = OUTPUTS[dtype]
        problem = grouped_problem(Grouping.CONTIGUOUS, groups, max_m, n, k, output, batch_invariant=invariant)
        choices += [(replace(problem, m=m), config) for m, config in grouped_config_by_m(problem, chip)]
    quantizers = [quantizer_to_rows(INPUTS[dtype])]
    if some:  # tokens may come quantised, from other ranks
        quantizers.append(masked_quantizer(QuantizeSource.SILU_MUL, dtype))
        quantizers += [rows_quantizer(QuantizeSource.PLAIN, dtype, rows) for rows in ROWS_OF_WARP]
    else:
        quantizers += [rows_quantizer(QuantizeSource.SILU_MUL, dtype, rows) for rows in ROWS_OF_WARP]
    routing = [ROUTE_TOKENS, COUNT_ROUTES, route_and_quantize_request(INPUTS[dtype]), unpermute_request(INPUTS[dtype])]
    routing += [COPY_TO_ROWS] if some else []
    if in_force.jit == "compile":
        # All at once, because NVRTC compiles in parallel; those in the cache cost next to nothing.
        products = dict.fromkeys(kernel_request(*choice) for choice in choices)
        build_many([*products, *(each.request for each in quantizers), *routing])
    for problem, _ in choices:
        kernel_for(problem, chip, index)
    for quantizer in quantizers:
        quantizer_for(quantizer, index)
    for request in routing:
        routing_kernel_for(request, index)
