"""Batch-invariant mode: the bits of a row depend on nothing but that row of A and C, on B and on the bias."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.tuning.problem import Problem, Scaling
from fp8gemm.tuning.select import config_by_m
from tests import cases
from tests.gpu.faults.support import Kind, build_chosen, configs_of, launch, make_kernels

BF16, FP32 = torch.bfloat16, torch.float32
ROWS = [1, 2, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 777, 1024, 2048, 4096]
LAYERS = [(2112, 7168), (7168, 2048), (576, 512), (100, 272)]


def rows_of(case: cases.Case, rows: slice) -> tuple[torch.Tensor, ...]:
    return case.a[rows], case.scales_a[rows], case.b, case.scales_b


@pytest.mark.parametrize("scaling", Scaling)
@pytest.mark.parametrize("output", [BF16, FP32])
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_a_row_has_the_same_bits_whatever_is_beside_it(n, k, output, scaling, device, seed):
    case = cases.signed(4096, n, k, seed=seed, device=device, scaling=scaling, c=BF16, bias=FP32)
    kind = Kind(output, scaling, BF16, FP32)
    problems = [replace(kind.problem(m, n, k), batch_invariant=True) for m in ROWS]
    build_chosen(problems, device)
    chosen = {config for _, config in config_by_m(problems[-1], device_chip(device.index))}
    assert all(config.warpgroups_k == 1 for config in chosen)
    with settings.scope(batch_invariant=True):
        whole = fp8gemm.gemm(*case.operands, **case.epilogue, out_dtype=output)
        for m in ROWS:
            for rows in (slice(0, m), slice(4096 - m, 4096), slice((4096 - m) // 2, (4096 - m) // 2 + m)):
                part = fp8gemm.gemm(*rows_of(case, rows), c=case.c[rows], bias=case.bias, out_dtype=output)
                assert torch.equal(part, whole[rows]), f"{case}, {rows}, {len(chosen)} configs"


def test_plan_and_setting_agree_with_the_argument(device, seed):
    case = cases.signed(777, 2112, 1040, seed=seed, device=device)
    by_argument = fp8gemm.gemm(*case.operands, batch_invariant=True)
    with settings.scope(batch_invariant=True):
        by_setting = fp8gemm.gemm(*case.operands)
        plan = fp8gemm.plan(case.b, case.scales_b, max_m=1024)
    assert torch.equal(by_argument, by_setting) and torch.equal(plan(case.a, case.scales_a), by_setting)
    assert torch.equal(plan(case.a[:5], case.scales_a[:5]), by_setting[:5])


@pytest.mark.parametrize("scaling", Scaling)
def test_what_every_config_makes_of_the_same_operands(scaling, device, seed):
    """Not a promise: the tensor core's order of addition is not documented. If this fails, the mode earns its price,
    and what the documents say about the default mode is out of date. Configs that divide K add its blocks in
    an order of their own, and differ on purpose."""
    different = []
    for m, n, k in [(333, 1024, 3216), (130, 256, 512), (1, 128, 7168)]:
        for maker in (cases.signed, cases.positive, cases.heavy_tailed):
            case = maker(m, n, k, seed=seed, device=device, scaling=scaling)
            problem = Problem(m, n, k, Kind(FP32).problem(m, n, k).output, scaling=scaling)
            configs = [config for config in configs_of(problem) if config.warpgroups_k * config.split_k == 1]
            kernels = make_kernels([(problem, config) for config in configs], device)
            outputs = [launch(kernel, case, torch.empty(m, n, dtype=FP32, device=device)) for kernel in kernels]
            different += [
                kernel.config.label
                for kernel, out in zip(kernels, outputs, strict=True)
                if not torch.equal(out, outputs[0])
            ]
    assert different == []
