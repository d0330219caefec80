"""The reference's C, bias and row scales: order and range of the additions, special values, layouts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fp8gemm.reference import gemm as reference
from fp8gemm.reference import gemm_magnitude, gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases

E4M3 = torch.float8_e4m3fn
BIG = 2.0**127


def sum_of(product: float, c: float, bias: float, dtype: torch.dtype = torch.float32) -> float:
    """One element whose product, C and bias are these; `product` is a power of two or 0, times 1 or -1."""
    a = torch.zeros(1, 16)
    a[0, 0] = math.copysign(1.0, product)
    ones = torch.ones(1, 16).to(E4M3)
    scale = torch.tensor([[abs(product)]])
    terms = {"c": torch.tensor([[c]]), "bias": torch.tensor([bias])}
    return gemm_reference(a.to(E4M3), scale, ones, torch.ones(1, 1), **terms, out_dtype=dtype).item()


@pytest.mark.parametrize(
    ("product", "c", "bias", "expected"),
    [
        (1.0, 2.0, 4.0, 7.0),
        (BIG, BIG, -BIG, math.inf),  # FP32 accumulators overflow on C, and stay there
        (-BIG, -BIG, BIG, -math.inf),
        (BIG, -BIG, BIG, BIG),
        (BIG, 0.0, BIG, math.inf),
        (1.0, math.inf, 1.0, math.inf),
        (1.0, math.inf, -math.inf, math.nan),
        (1.0, math.nan, 1.0, math.nan),
        (1.0, 1.0, math.nan, math.nan),
        (1.0, 1.0, -math.inf, -math.inf),
        (0.0, 2.0**-149, 0.0, 2.0**-149),
        (0.0, -(2.0**-149), 2.0**-149, 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_c_and_then_the_bias_are_added_with_the_range_of_float32(product, c, bias, expected, dtype):
    out = sum_of(product, c, bias, dtype)
    assert out == expected or (math.isnan(expected) and math.isnan(out))


@pytest.mark.parametrize(
    ("dtype", "product", "c", "bias", "expected"),
    [
        (torch.float16, 65536.0, -32.0, 0.0, 65504.0),
        (torch.float16, 65536.0, -16.0, 0.0, math.inf),  # 65520, a tie that goes to 2^16
        (torch.float16, 65536.0, -16.0, -(2.0**-8), 65504.0),
        (torch.float16, -65536.0, 0.0, 0.0, -math.inf),
        (torch.bfloat16, 256.0, 1.0, 0.0, 256.0),
        (torch.bfloat16, 256.0, 1.0, 2.0**-16, 258.0),  # C first rounded to 256, the bias would be lost
        (torch.bfloat16, 2048.0, 4.0, 4.0, 2048.0),
        (torch.float16, 2048.0, 1.0, 2.0**-12, 2050.0),
        (torch.float32, 2.0**24, 1.0, 0.5, 2.0**24 + 2),
    ],
)
def test_there_is_one_rounding_at_the_end(dtype, product, c, bias, expected):
    assert sum_of(product, c, bias, dtype) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_special_values_of_c_and_bias_reach_their_element_and_column_alone(dtype):
    case = cases.signed(6, 140, 272, seed=cases.fresh_seed(), c=dtype, bias=dtype)
    clean = gemm_reference(*case.operands, **case.epilogue)
    case.c[2, 7], case.c[3, 8], case.bias[135], case.bias[8] = math.nan, math.inf, -math.inf, -math.inf
    out = gemm_reference(*case.operands, **case.epilogue)
    assert out[2, 7].isnan() and out[3, 8].isnan(), "Inf - Inf"
    assert (out[:, 135] == -math.inf).all() and (out[[0, 1, 2, 4, 5], 8] == -math.inf).all()
    untouched = torch.ones(6, 140, dtype=torch.bool)
    untouched[2, 7], untouched[:, 135], untouched[:, 8] = False, False, False
    assert torch.equal(out[untouched], clean[untouched]), str(case)


@pytest.mark.parametrize("scaling", list(Scaling))
def test_layouts_and_tiles_change_nothing(scaling, monkeypatch):
    case = cases.signed(19, 300, 272, seed=cases.fresh_seed(), scaling=scaling, c=torch.bfloat16, bias=torch.float32)
    out = gemm_reference(*case.operands, **case.epilogue)
    magnitude = gemm_magnitude(*case.operands, **case.epilogue)
    strided = replace(
        case,
        scales_b=case.scales_b.repeat(1, 2)[:, :3],
        c=case.c.t().contiguous().t(),
        bias=torch.empty(600)[::2].copy_(case.bias),
    )
    assert torch.equal(gemm_reference(*strided.operands, **strided.epilogue), out), str(case)
    monkeypatch.setattr(reference, "_TILE_ROWS", 8)
    monkeypatch.setattr(reference, "_TILE_COLUMNS", 100)
    assert torch.equal(gemm_reference(*case.operands, **case.epilogue), out), str(case)
    assert torch.equal(gemm_magnitude(*case.operands, **case.epilogue), magnitude), str(case)


def test_c_is_read_and_the_result_is_new_memory():
    case = cases.signed(5, 140, 272, seed=cases.fresh_seed(), c=torch.float32)
    before = case.c.clone()
    out = gemm_reference(*case.operands, c=case.c, out_dtype=torch.float32)
    assert torch.equal(case.c, before) and out.data_ptr() != case.c.data_ptr()
    one_row = case.c[:1].expand(5, -1)
    repeated = gemm_reference(*case.operands, c=one_row, out_dtype=torch.float32)
    assert torch.equal(repeated, gemm_reference(*case.operands, c=one_row.clone(), out_dtype=torch.float32))


def test_block_scales_spelled_out_for_each_row_give_the_same_bits():
    case = cases.signed(6, 300, 400, seed=cases.fresh_seed())
    per_row = case.scales_b.repeat_interleave(128, dim=0)[:300]
    assert torch.equal(gemm_reference(case.a, case.scales_a, case.b, per_row), gemm_reference(*case.operands))


def test_the_product_is_symmetric_in_operands_scaled_alike():
    case = cases.signed(60, 140, 400, seed=cases.fresh_seed(), scaling=Scaling.ROW)
    swapped = (case.b, case.scales_b, case.a, case.scales_a)
    error = gemm_reference(*swapped, out_dtype=torch.float64).T - gemm_reference(
        *case.operands, out_dtype=torch.float64
    )
    assert (error.abs() <= 2.0**-50 * gemm_magnitude(*case.operands)).all(), str(case)
