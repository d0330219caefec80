"""What layers take on this machine's Hopper GPU, by the benchmark's methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch

import fp8gemm
from fp8gemm.driver.device import DeviceInfo
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab import DEVICE
from fp8gemm.lab.bench.graph import Bench, Rounds
from fp8gemm.lab.bench.grouped import GroupedBench
from fp8gemm.lab.bench.grouped_cases import CONTIGUOUS, DECODE, MASKED, GroupedCase
from fp8gemm.lab.bench.grouped_products import IN_MASK, OFFSETS
from fp8gemm.lab.bench.load import Load
from fp8gemm.lab.bench.operands import Call, Operands, normal
from fp8gemm.lab.bench.peers import OURS, Peer
from fp8gemm.lab.bench.regimes import Regime, default_regimes, method
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.bench.suite import Suite
from fp8gemm.lab.bench.timing import Timings
from fp8gemm.lab.report.layers import Point
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Problem, Scaling

METHOD = "CUDA-graph replay over rotating operands larger than three times L2; {how}"
_MEASURE_US = 10_000.0
_WARM_SECONDS = 2.0
_ROOM = 2
"""Rows that a group has room for in the masked layout, of those that are typical."""


def how_measured(rows: Iterable[int]) -> str:
    """Half a sentence: how products of so many rows each are measured."""
    found = {regime for m in rows for regime in default_regimes(m)}
    return METHOD.format(how=method([regime for regime in Regime if regime in found], None))


def measured(
    points: Sequence[Point], device: DeviceInfo, chip: Chip, advance: Callable[[], object] = lambda: None
) -> list[Point]:
    """Time each point on GPU 0; one that cannot be says why. ``advance`` is called after each.

    Raises:
        CacheMissError, CompileError: a kernel could not be built.
    """
    build_many(list(dict.fromkeys(kernel_request(point.problem, point.config) for point in points)))
    generator = torch.Generator(DEVICE).manual_seed(0)
    found = []
    with Load() as load:
        rounds = Rounds(warm_seconds=_WARM_SECONDS, load=load)
        grouped = GroupedBench(generator, rounds, chip, l2_bytes=device.l2_bytes, measure_us=_MEASURE_US)
        for point in points:
            problem = point.problem
            if isinstance(problem, GroupedProblem):
                found.append(_of_groups(point, problem, grouped))
            else:
                suite = Suite([_peer(problem)], {}, [], lambda operands: "")
                bench = Bench(suite, device, generator, rounds=rounds, measure_us=_MEASURE_US)
                found.append(_with(point, bench.measure(Shape(problem.m, problem.n, problem.k)), OURS))
            advance()
    return found


def _with(point: Point, timings: Iterable[Timings], name: str) -> Point:
    """With the time of one of those that took turns in each regime."""
    rows = list(timings)
    times = {row.regime.value: row.us[name] for row in rows if name in row.us}
    failed = next((row.failed[name] for row in rows if name in row.failed), "")
    return replace(point, measured=times, failed=failed)


def _of_groups(point: Point, problem: GroupedProblem, bench: GroupedBench) -> Point:
    if problem.output is not OutputType.BFLOAT16 or problem.batch_invariant:
        return replace(point, failed="groups are measured with bfloat16 outputs and without batch invariance alone")
    touched, masked = point.layer.touched(point.m), problem.grouping is Grouping.MASKED
    if touched < problem.groups and problem.groups % touched:
        return replace(point, failed=f"{touched} of {problem.groups} groups have rows, which is not measured")
    part = DECODE if touched < problem.groups else MASKED if masked else CONTIGUOUS
    sizes = problem.groups, problem.m, problem.n, problem.k
    case = GroupedCase(part, *sizes, max_m=_ROOM * problem.m, touched=touched)
    name = IN_MASK if masked else OFFSETS
    return _with(point, bench.measure(case, only=(name,)), name)


def _peer(problem: Problem) -> Peer:
    """The product as a layer has it: a plan of a weight, with what is added."""
    return Peer(
        OURS,
        "fp8gemm.plan",
        partial(_prepared, problem),
        expected=lambda operands: _expected(problem, operands),
    )


def _prepared(problem: Problem, operands: Operands) -> Call:
    a, scales_a, b, scales_b = operands.blocks
    if problem.scaling is Scaling.ROW:
        b, scales_b = quantize_activation(operands.w)
    c, bias = _addends(problem, operands)
    plan = fp8gemm.plan(
        b,
        scales_b,
        max_m=problem.m,
        bias=bias,
        out_dtype=problem.output.value,
        c_dtype=None if c is None else c.dtype,
        batch_invariant=problem.batch_invariant,
        static_weights=problem.static_weights,
    )
    out = torch.empty(problem.m, problem.n, dtype=getattr(torch, problem.output.value), device=a.device)
    return lambda: plan(a, scales_a, c=c, out=out)


def _addends(problem: Problem, operands: Operands) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """C and the bias, the same for the same problem."""
    generator = torch.Generator(operands.x.device).manual_seed(1)
    shapes = (problem.m, problem.n), (problem.n,)
    c, bias = (
        None if addend is Addend.NONE else normal(generator, *shape, dtype=getattr(torch, addend.type_name))
        for addend, shape in zip((problem.c, problem.bias), shapes, strict=True)
    )
    return c, bias


def _expected(problem: Problem, operands: Operands) -> torch.Tensor:
    product = operands.product()
    for added in _addends(problem, operands):
        product = product if added is None else product + added
    return product
