"""`fp8gemm.gemm` on a Hopper GPU by the gates of `tests.numerics`: shapes with every kind of tail, special values."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

import fp8gemm
from fp8gemm.errors import UnsupportedError
from fp8gemm.reference import gemm_magnitude, gemm_reference
from tests import cases

ROWS = (1, 7, 64, 65, 128, 333)
COLUMNS = (8, 100, 576, 2112, 7168)
DEPTHS = (16, 112, 128, 512, 7168)
E4M3 = torch.float8_e4m3fn

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
def test_other_output_dtypes_are_right_or_refused(maker, out_dtype, m, n, k, device, seed):
    case = maker(m, n, k, seed=seed, device=device)
    try:
        out = fp8gemm.gemm(*case.operands, out_dtype=out_dtype)
    except UnsupportedError as error:
        assert str(out_dtype).removeprefix("torch.") in str(error)
        return
    assert out.dtype == out_dtype
    case.check(out).raise_if_failed(case)


@pytest.mark.parametrize(("n", "k"), [(8, 16), (576, 512), (7168, 7168)])
def test_no_rows(n, k, device):
    case = cases.signed(0, n, k, seed=0, device=device)
    out = fp8gemm.gemm(*case.operands)
    assert out.shape == (0, n) and out.dtype == torch.bfloat16 and out.device == case.a.device


def test_all_pairs_of_codes(device):
    """One-hot in K: subnormals, both zeros and NaN, each product alone and exact."""
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(E4M3)
    for k in range(16):
        a = torch.zeros(256, 16, dtype=E4M3, device=device)
        a[:, k] = codes
        case = cases.Case("exact", k, a, torch.ones(256, 1, device=device), a.clone(), torch.ones(2, 1, device=device))
        case.check(fp8gemm.gemm(*case.operands)).raise_if_failed(f"all pairs of codes at k = {k}")


@pytest.mark.parametrize(("m", "n", "k"), [(7, 576, 512), (333, 2112, 7168)])
def test_nan_code_reaches_its_row_or_column_alone(m, n, k, device, seed):
    case = cases.signed(m, n, k, seed=seed, device=device)
    clean = fp8gemm.gemm(*case.operands)
    case.a[m // 2, k - 1] = math.nan
    case.b[n - 3, 0] = math.nan
    out = fp8gemm.gemm(*case.operands)
    hit = torch.zeros(m, n, dtype=torch.bool, device=device)
    hit[m // 2], hit[:, n - 3] = True, True
    assert torch.equal(out.isnan(), hit), str(case)
    assert torch.equal(out[~hit], clean[~hit]), str(case)


@pytest.mark.parametrize(("m", "n", "k"), [(7, 576, 512), (333, 2112, 1040)])
@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0, -4.0, math.inf, -math.inf, math.nan])
def test_special_scales_with_exact_block_sums(scale, m, n, k, device, seed):
    case = cases.small_integers(m, n, k, seed=seed, device=device)
    case.scales_a[m - 2, 0] = scale
    case.scales_b[1, -1] = scale
    case.check(fp8gemm.gemm(*case.operands)).raise_if_failed(f"{case}, scale {scale}")


@pytest.mark.parametrize(("m", "n", "k"), [(7, 576, 512), (333, 2112, 1040)])
@pytest.mark.parametrize("factor", [-1.7, 1e-23, 2.0**-126, 2.0**-140, 1e30])
def test_extreme_scales_everywhere(factor, m, n, k, device, seed):
    """Down to subnormal scales and outputs: nothing is flushed to zero."""
    case = cases.signed(m, n, k, seed=seed, device=device)
    case = replace(case, scales_a=case.scales_a * factor)
    case.check(fp8gemm.gemm(*case.operands)).raise_if_failed(f"{case}, scales times {factor}")


def test_product_of_scales_underflows_and_overflows_in_float32(device, seed):
    """1e-23 * 1e-23 is 0 and 2^100 * 2^100 Inf before either meets a block sum."""
    case = replace(cases.small_integers(130, 256, 128, seed=seed, device=device), data="signed")
    case.scales_a[:65], case.scales_a[65:] = 1e-23, 2.0**100
    case.scales_b[0], case.scales_b[1] = 1e-23, 2.0**100
    out = fp8gemm.gemm(*case.operands)
    assert (out[:65, :128] == 0).all() and not out[65:, 128:].isfinite().any(), str(case)
    case.check(out).raise_if_failed(case)


def test_output_overflows_to_infinity_as_rounding_says(device):
    """Times 2^119, 512 is past bfloat16's range, 511 a tie that goes there, and 510 its largest number."""
    a = torch.ones(128, 128, device=device).tril()
    b = 4 - torch.ones(16, 128, device=device).tril(-1)
    scales_a, scales_b = torch.full((128, 1), -(2.0**119), device=device), torch.ones(1, 1, device=device)
    case = cases.Case("exact", 0, a.to(E4M3), scales_a, b.to(E4M3), scales_b)
    out = fp8gemm.gemm(*case.operands)
    assert out[127, :3].tolist() == [-math.inf, -math.inf, -510 * 2.0**119]
    case.check(out).raise_if_failed("output overflow")


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
