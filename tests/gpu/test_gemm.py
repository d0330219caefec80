"""`fp8gemm.gemm` on a Hopper GPU by the gates of `tests.numerics`. What must not hurt it is in `tests/gpu/faults`."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

import fp8gemm
from fp8gemm.reference import gemm_magnitude, gemm_reference
from tests import cases

ROWS = (1, 7, 64, 65, 128, 333)
COLUMNS = (8, 100, 576, 2112, 7168)
DEPTHS = (16, 112, 128, 512, 7168)

MANY_ROWS = [
    *((4096, n, 7168) for n in COLUMNS),
    *((4096, 7168, k) for k in DEPTHS[:-1]),
    *((4096, n, k) for n, k in zip(COLUMNS[:-1], DEPTHS[:-1], strict=True)),
]
SHAPES = [*itertools.product(ROWS, COLUMNS, DEPTHS), *MANY_ROWS]

# Each (N, K) once, with M in rotation, and the shape whose errors have the most room to grow.
COVER = [
    *((ROWS[i % len(ROWS)], n, k) for i, (n, k) in enumerate(itertools.product(COLUMNS, DEPTHS))),
    (4096, 7168, 7168),
]

# Lengths one beside a tile's, an output pitch that TMA can't store, and M, N of one.
TAILS = [
    (1, 1, 16),
    (63, 7, 144),
    (127, 127, 256),
    (129, 129, 144),
    (255, 1, 7168),
    (257, 136, 1040),
    (333, 577, 272),
]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_signed_data_into_a_poisoned_output(m, n, k, device, seed):
    case = cases.signed(m, n, k, seed=seed, device=device)
    out = torch.full((m, n), math.nan, dtype=torch.bfloat16, device=device)
    assert fp8gemm.gemm(*case.operands, out=out) is out
    case.check(out).raise_if_failed(case)


@pytest.mark.parametrize(("m", "n", "k"), [*COVER, *TAILS])
@pytest.mark.parametrize("maker", [cases.positive, cases.heavy_tailed, cases.small_integers, cases.distinct_scales])
def test_other_data(maker, m, n, k, device, seed):
    case = maker(m, n, k, seed=seed, device=device)
    out = fp8gemm.gemm(*case.operands)
    assert out.shape == (m, n) and out.dtype == torch.bfloat16 and out.is_contiguous()
    case.check(out).raise_if_failed(case)


@pytest.mark.parametrize(("m", "n", "k"), [(4096, 2112, 7168), (333, 7168, 16384), (7, 2112, 16384)])
def test_positive_data_over_long_k(m, n, k, device, seed):
    """Where a kernel that does not promote is off by a tenth."""
    case = cases.positive(m, n, k, seed=seed, device=device)
    case.check(fp8gemm.gemm(*case.operands)).raise_if_failed(case)


@pytest.mark.parametrize(("m", "n", "k"), [(7, 2112, 7168), (128, 100, 112), (333, 576, 512)])
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.small_integers])
def test_other_output_dtypes(maker, out_dtype, m, n, k, device, seed):
    case = maker(m, n, k, seed=seed, device=device)
    out = fp8gemm.gemm(*case.operands, out_dtype=out_dtype)
    assert out.dtype == out_dtype
    case.check(out).raise_if_failed(case)


@pytest.mark.parametrize(("m", "n", "k"), [(7, 576, 512), (333, 2112, 1040)])
@pytest.mark.parametrize("factor", [-1.7, 1e-23, 2.0**-126, 2.0**-140, 1e30])
def test_extreme_scales_everywhere(factor, m, n, k, device, seed):
    """Down to subnormal scales and outputs: nothing is flushed to zero."""
    case = cases.signed(m, n, k, seed=seed, device=device)
    case = replace(case, scales_a=case.scales_a * factor)
    case.check(fp8gemm.gemm(*case.operands)).raise_if_failed(f"{case}, scales times {factor}")


@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (576, 512), (100, 112)])
def test_plan_is_gemm(n, k, device, seed):
    weight = cases.signed(1, n, k, seed=seed, device=device)
    plan = fp8gemm.plan(weight.b, weight.scales_b, max_m=1024)
    for m in (0, 1, 7, 64, 65, 333, 1024, 64):
        tokens = cases.signed(m, n, k, seed=seed + m, device=device)
        expected = fp8gemm.gemm(tokens.a, tokens.scales_a, weight.b, weight.scales_b)
        out = torch.full((m, n), math.nan, dtype=torch.bfloat16, device=device)
        assert plan(tokens.a, tokens.scales_a, out=out) is out
        assert torch.equal(out, expected), f"{tokens}"
        assert torch.equal(plan(tokens.a, tokens.scales_a.contiguous()), expected), f"{tokens}, row-major scales"


@pytest.mark.parametrize(("m", "n", "k"), [(65, 576, 1040), (7, 2112, 7168)])
@pytest.mark.parametrize("factor", [1.0, 2.0**-140])
def test_reference_is_the_same_on_gpu_and_cpu(factor, m, n, k, device, seed):
    """No flush to zero, no float64 emulated by less: the truth does not depend on where it is computed."""
    case = cases.signed(m, n, k, seed=seed, device=device)
    operands = (case.a, case.scales_a * factor, case.b, case.scales_b)
    on_gpu = gemm_reference(*operands, out_dtype=torch.float64).cpu()
    on_cpu = [operand.cpu() for operand in operands]
    error = (on_gpu - gemm_reference(*on_cpu, out_dtype=torch.float64)).abs()
    assert (error <= 2.0**-50 * gemm_magnitude(*on_cpu)).all(), str(case)
