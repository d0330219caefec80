"""Each gate with C, bias, both scalings and each output: right outputs pass, and each corruption fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fp8gemm.reference import gemm_magnitude, gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.cases import Case
from tests.simulation import float32_kernel, rounded_towards_zero, simulate_kernel

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ADDENDS = [{}, {"c": BF16}, {"c": FP32, "bias": BF16}, {"bias": FP32}]
MAKERS = [cases.signed, cases.positive, cases.heavy_tailed, cases.small_integers]
outputs = pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=["bf16", "fp16", "fp32"])
scalings = pytest.mark.parametrize("scaling", list(Scaling))


@pytest.fixture
def seed() -> int:
    return cases.fresh_seed()


def failed(case: Case, out: Tensor) -> set[str]:
    return set(case.check(out).failed)


@outputs
@scalings
@pytest.mark.parametrize("addends", ADDENDS, ids=str)
@pytest.mark.parametrize("maker", MAKERS)
def test_right_kernels_pass(maker, addends, scaling, dtype, seed):
    for shape in ((1, 8, 16), (65, 140, 1040)):
        case = maker(*shape, seed=seed, scaling=scaling, **addends)
        case.check(float32_kernel(case, out_dtype=dtype)).raise_if_failed(case)


@outputs
@pytest.mark.parametrize("maker", MAKERS)
def test_simulated_tensor_core_with_c_and_bias_passes(maker, dtype, seed):
    case = maker(33, 130, 1040, seed=seed, scaling=Scaling.ROW, c=BF16, bias=FP32)
    case.check(simulate_kernel(case, out_dtype=dtype)).raise_if_failed(case)


@outputs
@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e6])
@pytest.mark.parametrize("maker", MAKERS[:3])
def test_c_of_another_size_than_the_product_passes(maker, factor, dtype, seed):
    case = maker(65, 140, 528, seed=seed, c=FP32, bias=FP32)
    case = replace(case, c=case.c * factor)
    case.check(float32_kernel(case, out_dtype=dtype)).raise_if_failed(case)


@outputs
@pytest.mark.parametrize("maker", MAKERS)
def test_c_or_bias_ignored_or_misplaced_fails(maker, dtype, seed):
    case = maker(130, 200, 528, seed=seed, c=BF16, bias=FP32)
    for name, wrong in {
        "C ignored": {"c": None},
        "C of the next row": {"c": case.c.roll(-1, 0)},
        "C added twice": {"c": 2 * case.c},
        "bias ignored": {"bias": None},
        "bias of the next column": {"bias": case.bias.roll(-1)},
        "bias in bfloat16 of half its size": {"bias": case.bias / 2},
    }.items():
        out = float32_kernel(replace(case, **wrong), out_dtype=dtype)
        assert failed(case, out), f"{case}: {name}"


@outputs
@scalings
@pytest.mark.parametrize("maker", MAKERS)
def test_one_element_and_one_tile_fail_with_their_place(maker, scaling, dtype, seed):
    case = maker(200, 300, 528, seed=seed, scaling=scaling, c=BF16, bias=FP32)
    out = float32_kernel(case, out_dtype=dtype)
    finite = out.isfinite()
    spread = out.double().abs().where(finite, 0.0).sum() / finite.sum()
    one = out.clone()
    one[150, 299] = 0.0 if out[150, 299].abs() > spread / 4 else spread
    assert "[150, 299], tile (1, 2)" in str(case.check(one)) and failed(case, one) & {"element", "exact"}, str(case)
    zeroed = out.clone()
    zeroed[128:, 128:256] = 0
    report = case.check(zeroed)
    assert report.failed and "tile (1, 1)" in str(report), f"{case}\n{report}"


@outputs
def test_one_row_a_little_too_large_fails(dtype, seed):
    case = cases.signed(64, 300, 1040, seed=seed, c=BF16, bias=FP32)
    out = float32_kernel(case, out_dtype=FP32)
    out[17] *= 1.0005 if dtype == FP32 else 1.004
    report = case.check(out.to(dtype))
    assert "rms row" in report.failed and "row 17" in str(report), f"{case}\n{report}"


@outputs
def test_accumulation_that_is_not_promoted_fails_by_its_bias(dtype, seed):
    case = cases.positive(32, 64, 4096, seed=seed)
    case = replace(case, scales_a=torch.full_like(case.scales_a, 2.0**-10), scales_b=torch.ones_like(case.scales_b))
    right = simulate_kernel(case, out_dtype=dtype)
    case.check(right).raise_if_failed(case)
    in_units = replace(case, scales_a=torch.ones_like(case.scales_a))
    wrong = simulate_kernel(in_units, out_dtype=FP32, promote=False) * 2.0**-10
    assert right.isfinite().all() and "bias" in failed(case, wrong.to(dtype)), str(case)


@pytest.mark.parametrize(("dtype", "through"), [(FP16, BF16), (BF16, FP16), (FP16, "c"), (BF16, "c"), (FP16, "zero")])
def test_a_second_rounding_fails(dtype, through, seed):
    """Through the other 16-bit type, of the product before C is added, or towards zero: exact data shows each."""
    case = cases.small_integers(256, 256, 1040, seed=seed, c=BF16)
    exact = gemm_reference(*case.operands, c=case.c, out_dtype=FP32)
    assert failed(case, exact.to(dtype)) == set()
    if through == "c":
        out = gemm_reference(*case.operands, out_dtype=dtype) + case.c.to(dtype)
    elif through == "zero":
        out = rounded_towards_zero(exact, dtype)
    else:
        out = exact.to(through).to(dtype)
    report = case.check(out)
    assert report.failed == ("exact",), f"{case}\n{report}"
    if (dtype, through) in ((BF16, FP16), (FP16, "zero")):  # the other errors can be larger than one step
        assert "rounded the wrong way" in str(report), f"{case}\n{report}"


def test_float16_is_held_to_its_own_eleven_bits(seed):
    """What would do for bfloat16 fails: here the sums are short, so that S is not far above the result."""
    case = cases.positive(64, 128, 16, seed=seed)
    case = replace(case, data="signed")
    out = gemm_reference(*case.operands, out_dtype=BF16)
    assert failed(case, out) == set()
    assert "element" in failed(case, out.to(FP16)), str(case)


@pytest.mark.parametrize("value", [1.0, 64000.0, -65504.0, torch.nan, -torch.inf])
@pytest.mark.parametrize("maker", [cases.positive, cases.small_integers])
def test_only_numbers_next_to_the_overflow_of_float16_may_stand_for_it(maker, value, seed):
    """The reference is just past 65520, where Inf is right and, but for exact data, 65504 is near enough."""
    case = maker(8, 16, 128, seed=seed)
    product = gemm_reference(*case.operands, out_dtype=FP32)
    case = replace(case, c=(65524 - product).where(torch.eye(8, 16) > 0, 0.0))
    out = gemm_reference(*case.operands, c=case.c, out_dtype=FP16)
    assert out.diagonal().isposinf().all()
    case.check(out).raise_if_failed(case)
    for found in (65504.0, value):
        out[3, 3] = found
        right = found == 65504.0 and case.data != "exact"
        assert (failed(case, out) == set()) == right, f"{case}: {found}"


@pytest.mark.parametrize("maker", [cases.positive, cases.heavy_tailed])
def test_float16_outputs_whose_terms_dwarf_its_range(maker, seed):
    """Where S is far above 65504, what `element` allows reaches from -Inf to Inf: what lies between is right too."""
    case = maker(33, 130, 400, seed=seed)
    case = replace(case, scales_a=case.scales_a * (1e7 / float(gemm_magnitude(*case.operands).median())))
    right = simulate_kernel(case, out_dtype=torch.float32)
    reference = gemm_reference(*case.operands, out_dtype=torch.float64)
    case.check(right.to(FP16)).raise_if_failed(case)
    near = (reference.abs() > 65520) & (reference.abs() < 6.5e4 + 3e-3 * gemm_magnitude(*case.operands))
    case.check(torch.where(near, 6.5e4 * reference.sign(), right.double()).to(FP16)).raise_if_failed(case)
    assert "positions" in failed(case, torch.where(reference > 0, -torch.inf, right.double()).to(FP16)), case
    assert {"positions", "element"} & failed(case, torch.zeros_like(right, dtype=FP16)), case


@pytest.mark.parametrize("maker", [cases.signed, cases.small_integers])
def test_subnormal_float16_outputs(maker, seed):
    """2^-24 apart: half of it is rounding, one of it and a half is an error."""
    case = maker(65, 130, 272, seed=seed)
    case = replace(case, scales_a=case.scales_a * 2.0**-26)
    out = float32_kernel(case, out_dtype=FP16)
    assert 0 < out.abs().double().mean() < 2.0**-14
    case.check(out).raise_if_failed(case)
    out[30, 40] += 3 * 2.0**-24
    assert failed(case, out) & {"element", "exact"}, str(case)


@outputs
@pytest.mark.parametrize("source", ["a", "c", "bias"])
def test_one_nan_moved_fails(source, dtype, seed):
    case = cases.small_integers(20, 140, 272, seed=seed, c=FP32, bias=FP32)
    {"a": case.a, "c": case.c, "bias": case.bias[None]}[source][0, 5] = torch.nan
    out = gemm_reference(*case.operands, **case.epilogue, out_dtype=dtype)
    case.check(out).raise_if_failed(case)
    moved = {"a": out.roll(1, 0), "c": out.clone(), "bias": out.roll(1, 1)}[source]
    if source == "c":
        moved[0, 5], moved[0, 6] = out[0, 6], torch.nan
    report = case.check(moved)
    assert "positions" in report.failed, f"{case}\n{report}"
    for wrong in (torch.where(out.isnan(), 0.0, out), torch.where(out.isnan(), torch.inf, out)):
        assert "positions" in failed(case, wrong), str(case)
