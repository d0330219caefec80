"""The data makers: what the gates rely on must hold of the operands themselves."""

from __future__ import annotations

import pytest
import torch

from fp8gemm.reference import gemm_magnitude, gemm_reference
from fp8gemm.scales import is_mn_major
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.simulation import float32_kernel

MAKERS = [cases.signed, cases.positive, cases.heavy_tailed, cases.small_integers]
TERMS = {"c": torch.bfloat16, "bias": torch.float32}


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("maker", [*MAKERS, cases.distinct_scales])
def test_shapes_layouts_and_equal_seeds(maker, scaling):
    case, again = (maker(33, 140, 272, seed=7, scaling=scaling) for _ in range(2))
    assert all(torch.equal(x.float(), y.float()) for x, y in zip(case.operands, again.operands, strict=True))
    assert case.epilogue == {} and case.scaling is scaling and scaling.value in str(case)
    assert case.scales_b.shape == ((140, 3) if scaling is Scaling.ROW else (2, 3))
    assert is_mn_major(case.scales_a)
    assert is_mn_major(case.scales_b) if scaling is Scaling.ROW else case.scales_b.is_contiguous()


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("maker", MAKERS)
def test_c_and_bias_leave_the_operands_as_they_are(maker, scaling):
    plain = maker(33, 140, 272, seed=7, scaling=scaling)
    for c, bias in ((torch.bfloat16, None), (None, torch.bfloat16), (torch.float32, torch.bfloat16)):
        case = maker(33, 140, 272, seed=7, scaling=scaling, c=c, bias=bias)
        assert all(torch.equal(x.float(), y.float()) for x, y in zip(case.operands, plain.operands, strict=True))
        assert {name: (term.dtype, term.shape) for name, term in case.epilogue.items()} == {
            name: found for name, found in (("c", (c, (33, 140))), ("bias", (bias, (140,)))) if found[0] is not None
        }
    assert "c float32, bias bfloat16" in str(case)


@pytest.mark.parametrize("maker", MAKERS[:3])
@pytest.mark.parametrize("k", [16, 1040])
def test_c_and_bias_are_as_large_as_the_product(maker, k):
    """So that neither hides an error of the other."""
    case = maker(256, 256, k, seed=cases.fresh_seed(), **TERMS)
    product = gemm_reference(*case.operands, out_dtype=torch.float64)
    size = product.square().mean().sqrt()
    within = 40 if case.data == "heavy" else 4  # a few elements make a heavy product's size
    for name, term in case.epilogue.items():
        assert size / within <= term.double().square().mean().sqrt() <= within * size, f"{case}: {name}"
        assert case.data != "positive" or (term >= 0).all(), str(case)


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("c", [torch.bfloat16, torch.float32])
def test_small_integers_stay_exact_in_float32_with_c_and_bias(scaling, c):
    case = cases.small_integers(16, 130, 16368, seed=cases.fresh_seed(), scaling=scaling, c=c, bias=torch.bfloat16)
    exact = gemm_reference(*case.operands, **case.epilogue, out_dtype=torch.float64)
    assert torch.equal(float32_kernel(case, out_dtype=torch.float32).double(), exact), str(case)
    assert gemm_magnitude(*case.operands, **case.epilogue).max() < 2**20
    for term in case.epilogue.values():
        assert torch.equal(term, term.round()) and 32 < term.abs().max() <= 64


@pytest.mark.parametrize("scaling", list(Scaling))
def test_neighbours_of_distinct_scales_differ(scaling):
    case = cases.distinct_scales(300, 700, 1040, seed=cases.fresh_seed(), scaling=scaling)
    for name, scales in (("scales_a", case.scales_a), ("scales_b", case.scales_b)):
        assert torch.equal(scales, scales.log2().round().exp2()), "powers of two"
        assert (scales[:, 1:] != scales[:, :-1]).all(), name
        for rows_apart in (1, 2, 4, 8, 16, 64, 128):
            assert (scales[rows_apart:] != scales[:-rows_apart]).all(), f"{name}, {rows_apart} rows apart"


def test_distinct_scales_refuse_what_would_not_be_exact():
    for terms in ({"c": torch.float32}, {"bias": torch.bfloat16}):
        with pytest.raises(ValueError, match="no C and no bias"):
            cases.distinct_scales(8, 8, 128, seed=0, **terms)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("scaling", list(Scaling))
def test_no_rows(maker, scaling):
    case = maker(0, 8, 128, seed=0, scaling=scaling, **TERMS)
    assert case.c.shape == (0, 8) and case.bias.isfinite().all()
    assert case.check(gemm_reference(*case.operands, **case.epilogue)).passed
