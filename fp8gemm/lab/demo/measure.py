"""One line of the demo's table: quantise, build the kernel, multiply, check, time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

import fp8gemm
from fp8gemm.driver.device import DeviceInfo
from fp8gemm.jit.build import build
from fp8gemm.kernels.catalogue import kernel_request, shared_bytes
from fp8gemm.lab.bench.graph import GraphTimer
from fp8gemm.lab.bench.operands import Call, Operands, normal
from fp8gemm.lab.bench.timing import schedule
from fp8gemm.lab.demo.check import check
from fp8gemm.lab.demo.report import Row
from fp8gemm.lab.demo.target import Target
from fp8gemm.reference import dequantize_activation, dequantize_weight
from fp8gemm.tuning.problem import Problem, packed_problem
from fp8gemm.tuning.select import select_config

_ROUNDS = 5
_MEASURE_US = 10_000.0
_WARM_SECONDS = 0.2  # under load until the clock has settled


def measure_layer(n: int, k: int, ms: Sequence[int], target: Target, generator: torch.Generator) -> Iterator[Row]:
    """The row of each M for one weight (N, K) of standard normal values.

    Args:
        n, k: shape of the weight.
        ms: rows of the activations.
        target: where to compute.
        generator: of all random data, on the target's device.

    Raises:
        CompileError, CacheMissError, DriverError: a kernel could not be built or launched.
    """
    weight = normal(generator, n, k)
    b, scales_b = fp8gemm.quantize_weight(weight)
    exact_b = dequantize_weight(b, scales_b, dtype=torch.float64)
    for m in ms:
        problem = packed_problem(m, n, k)
        config = select_config(problem, target.chip)
        artifact = build(kernel_request(problem, config))

        x = normal(generator, target.rows(m), k)
        a, scales_a = fp8gemm.quantize_activation(x)
        out = torch.full((x.shape[0], n), math.nan, dtype=torch.bfloat16, device=target.device)
        fp8gemm.gemm(a, scales_a, b, scales_b, out=out)
        exact_a = dequantize_activation(a, scales_a, dtype=torch.float64)
        result = check(out, exact_a, exact_b, x @ weight.t())
        us = None if target.gpu is None else _time(problem, target.gpu, generator)
        size = shared_bytes(problem, config)
        yield Row(problem, config, size, artifact, result, rows_checked=x.shape[0], us=us)


def _time(problem: Problem, gpu: DeviceInfo, generator: torch.Generator) -> float:
    """Microseconds per call, by the benchmark's method: graph replay over operands that L2 cannot hold, median."""
    shape = problem.m, problem.n, problem.k
    plan = schedule(*shape, l2_bytes=gpu.l2_bytes, measure_us=_MEASURE_US)
    timer = GraphTimer([_call(Operands.random(*shape, generator)) for _ in range(plan.sets)], plan)
    warm_until = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < warm_until:
        timer()
    return statistics.median(timer() for _ in range(_ROUNDS))


def _call(operands: Operands) -> Call:
    return partial(fp8gemm.gemm, *operands.blocks, out=operands.output)
