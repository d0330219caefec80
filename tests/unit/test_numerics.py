"""The gates must pass a right kernel and fail every wrong one: here both are simulated, fault by fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fp8gemm.reference import gemm_reference
from tests import cases
from tests.cases import Case
from tests.numerics import Report, check
from tests.simulation import float32_kernel, simulate_kernel

SHAPES = [(1, 8, 16), (7, 100, 112), (65, 576, 512), (129, 200, 1040), (16, 130, 7168)]


@pytest.fixture
def seed() -> int:
    return cases.fresh_seed()


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.heavy_tailed])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_right_kernel_passes(shape, maker, out_dtype, seed):
    case = maker(*shape, seed=seed)
    case.check(float32_kernel(case, out_dtype=out_dtype)).raise_if_failed(case)


@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.small_integers, cases.distinct_scales])
def test_simulated_tensor_core_passes(maker, seed):
    case = maker(33, 130, 1040, seed=seed)
    case.check(simulate_kernel(case)).raise_if_failed(case)


@pytest.mark.parametrize("maker", [cases.small_integers, cases.distinct_scales])
@pytest.mark.parametrize("shape", [*SHAPES, (8, 64, 16384)])
def test_exact_data_is_exact_in_float32(shape, maker, seed):
    case = maker(*shape, seed=seed)
    for out_dtype in (torch.bfloat16, torch.float16, torch.float32):
        case.check(float32_kernel(case, out_dtype=out_dtype)).raise_if_failed(case)


def test_correctly_rounded_rows_of_few_elements_never_fail(seed):
    case = cases.signed(20000, 64, 128, seed=seed)
    case.check(gemm_reference(*case.operands)).raise_if_failed(case)


def test_empty_output_passes(seed):
    case = cases.signed(0, 128, 256, seed=seed)
    case.check(torch.empty(0, 128, dtype=torch.bfloat16)).raise_if_failed(case)


def failures(report: Report, case: Case) -> set[str]:
    assert report.failed, f"{case}: the fault went unnoticed\n{report}"
    with pytest.raises(AssertionError, match=report.failed[0]):
        report.raise_if_failed(case)
    return set(report.failed)


@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.heavy_tailed, cases.small_integers])
def test_zeroed_tile_fails(maker, seed):
    case = maker(400, 520, 512, seed=seed)
    out = gemm_reference(*case.operands)
    out[128:256, 256:384] = 0
    report = case.check(out)
    failed = failures(report, case)
    if case.data == "signed":
        assert {"rms tensor", "rms row", "rms tile"} <= failed
        assert report.worst("rms tile") == pytest.approx(1.0)
    assert "tile (1, 2)" in str(report), report


@pytest.mark.parametrize("maker", [cases.signed, cases.distinct_scales])
@pytest.mark.parametrize("which", ["scales_a", "scales_b"])
@pytest.mark.parametrize("dim", [0, 1])
def test_neighbouring_scale_blocks_swapped_fails(maker, which, dim, seed):
    case = maker(256, 384, 1024, seed=seed)
    scales = getattr(case, which)
    order = torch.arange(scales.shape[dim])
    order[[0, 1]] = order[[1, 0]]
    wrong = replace(case, **{which: scales.index_select(dim, order)})
    failures(case.check(float32_kernel(wrong)), case)


def test_one_dropped_scale_block_of_plain_normal_data_fails(seed):
    """All blocks alike, K long: one block's scale off by a half is as quiet as a scale fault gets."""
    case = cases.signed(128, 256, 7168, seed=seed)
    case = replace(case, scales_a=torch.ones_like(case.scales_a), scales_b=torch.ones_like(case.scales_b))
    wrong = replace(case, scales_b=case.scales_b.clone())
    wrong.scales_b[1, 30] *= 1.5
    assert "rms tile" in failures(case.check(float32_kernel(wrong)), case)


@pytest.mark.parametrize("k", [144, 1040])
@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.small_integers])
def test_missing_k_tail_fails(k, maker, seed):
    case = maker(128, 128, k, seed=seed)
    wrong = replace(case, a=case.a.clone())
    wrong.a[:, k // 128 * 128 :] = 0
    failures(case.check(float32_kernel(wrong)), case)


def test_unpromoted_accumulation_is_biased_on_positive_data(seed):
    case = cases.positive(32, 64, 4096, seed=seed)
    case = replace(case, scales_a=torch.ones_like(case.scales_a), scales_b=torch.ones_like(case.scales_b))
    case.check(simulate_kernel(case)).raise_if_failed(case)
    report = case.check(simulate_kernel(case, promote=False))
    assert "bias" in failures(report, case)
    assert report.worst("bias") > 0.01


def test_small_constant_bias_fails_where_no_element_is_far_off(seed):
    case = cases.positive(256, 256, 512, seed=seed)
    out = (gemm_reference(*case.operands, out_dtype=torch.float64) * 0.998).to(torch.bfloat16)
    assert failures(case.check(out), case) == {"bias"}


@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.small_integers])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_single_wrong_element_fails(maker, out_dtype, seed):
    case = maker(200, 300, 512, seed=seed)
    out = float32_kernel(case, out_dtype=out_dtype)
    spread = out.float().abs().mean()
    out[150, 299] += (spread / 8).to(out_dtype)
    report = case.check(out)
    failures(report, case)
    assert "[150, 299], tile (1, 2)" in str(report), report


def test_nan_and_infinity_positions(seed):
    case = cases.small_integers(70, 140, 256, seed=seed)
    case.a[3, 200] = torch.nan
    case.scales_a[5, 0] = torch.inf
    case.scales_a[6, 1] = -torch.inf
    case.scales_b[1, 1] = torch.nan
    right = gemm_reference(*case.operands)
    assert right[3].isnan().all() and right[5, :128].isinf().any() and right[:, 128:].isnan().all()
    case.check(right).raise_if_failed(case)
    for place, value in [
        ((3, 0), 0.0),
        ((0, 0), torch.nan),
        ((0, 1), torch.inf),
        ((5, right[5].isinf().int().argmax()), 1.0),
    ]:
        wrong = right.clone()
        wrong[place] = value
        assert "positions" in failures(case.check(wrong), case)
    infinite = right.isinf()
    assert "positions" in failures(case.check(torch.where(infinite, -right, right)), case)


def test_overflow_of_the_output_is_right_on_either_side_of_the_threshold(seed):
    """Near float16's 65520 rounding may go either way; far above it only Inf is right."""
    case = cases.positive(64, 128, 256, seed=seed)
    reference = gemm_reference(*case.operands, out_dtype=torch.float64)
    scaled = replace(case, scales_a=case.scales_a * (65520 / reference[:, :1]).to(torch.float32))
    for nearby in (torch.inf, 65504.0):
        out = gemm_reference(*scaled.operands, out_dtype=torch.float16)
        out[:, 0] = nearby
        scaled.check(out).raise_if_failed(scaled)
    doubled = replace(scaled, scales_a=scaled.scales_a * 2)
    out = gemm_reference(*doubled.operands, out_dtype=torch.float16)
    out[:, 0] = 65504.0
    assert "positions" in failures(doubled.check(out), doubled)


@pytest.mark.parametrize("scale", [1e-23, 2.0**-126, 2.0**-140, 1e30])
def test_extreme_scales_pass_by_the_floor_of_the_format(scale, seed):
    case = cases.signed(65, 200, 512, seed=seed)
    case = replace(case, scales_a=case.scales_a * scale)
    for out_dtype in (torch.bfloat16, torch.float32):
        case.check(float32_kernel(case, out_dtype=out_dtype)).raise_if_failed(case)


def test_calc_diff_is_the_peers_formula(seed):
    case = cases.signed(64, 128, 512, seed=seed)
    out = float32_kernel(case)
    x, y = out.double(), gemm_reference(*case.operands, out_dtype=torch.float64)
    expected = 1 - 2 * (x * y).sum() / (x * x + y * y).sum()
    assert case.check(out).calc_diff == pytest.approx(float(expected), rel=1e-6)
    assert 5e-7 < float(expected) < 3e-6


def test_wrong_shape_or_dtype_is_named(seed):
    case = cases.signed(8, 16, 128, seed=seed)
    with pytest.raises(AssertionError, match=r"expected shape \(8, 16\), got \(16, 8\)"):
        check(torch.zeros(16, 8, dtype=torch.bfloat16), *case.operands)
    with pytest.raises(AssertionError, match="got torch.float64"):
        check(torch.zeros(8, 16, dtype=torch.float64), *case.operands)
