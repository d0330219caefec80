"""The reference against arithmetic in exact fractions, which shares nothing with it."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.reference import (
    dequantize_activation,
    dequantize_weight,
    gemm_magnitude,
    gemm_reference,
    round_to_nearest_even,
)
from fp8gemm.reference import gemm as reference
from fp8gemm.scales import to_mn_major
from fp8gemm.tuning.problem import Scaling
from tests import cases

E4M3 = torch.float8_e4m3fn


def float32(value: float) -> float:
    """Rounded to float32, overflowing to Inf."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def exact_gemm(case: cases.Case) -> list[list[Fraction]]:
    """The contract in fractions; a product of two float32 fits a double, so `float32` of it rounds once."""
    a, b = case.a.double().tolist(), case.b.double().tolist()
    scales_a, scales_b = case.scales_a.tolist(), case.scales_b.tolist()
    rows_per_scale = 1 if len(scales_b) == len(b) else 128
    c = [[0.0] * len(b)] * len(a) if case.c is None else case.c.tolist()
    bias = [0.0] * len(b) if case.bias is None else case.bias.tolist()
    rows = []
    for m, row in enumerate(a):
        rows.append([])
        for n, column in enumerate(b):
            products = [Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
            rows[-1].append(
                sum(
                    Fraction(float32(scales_a[m][block] * scales_b[n // rows_per_scale][block]))
                    * sum(products[128 * block : 128 * block + 128])
                    for block in range(len(scales_a[m]))
                )
                + Fraction(c[m][n])
                + Fraction(bias[n])
            )
    return rows


KINDS = [
    {},
    {"scaling": Scaling.ROW},
    {"c": torch.bfloat16, "bias": torch.float32},
    {"scaling": Scaling.ROW, "c": torch.float32, "bias": torch.bfloat16},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 16), (3, 5, 144), (2, 130, 272)])
def test_against_exact_fractions(shape, kind):
    case = cases.signed(*shape, seed=cases.fresh_seed(), **kind)
    exact = exact_gemm(case)
    out = gemm_reference(*case.operands, **case.epilogue, out_dtype=torch.float64)
    magnitude = gemm_magnitude(*case.operands, **case.epilogue)
    for m, row in enumerate(exact):
        for n, value in enumerate(row):
            error = abs(Fraction(out[m, n].item()) - value)
            assert error <= Fraction(magnitude[m, n].item()) * Fraction(2) ** -50, f"{case}: [{m}, {n}]"


@pytest.mark.parametrize(
    ("maker", "kind"),
    [
        *((cases.small_integers, kind) for kind in KINDS),
        *((cases.distinct_scales, kind) for kind in KINDS[:2]),
    ],
)
def test_exact_data_against_exact_fractions(maker, kind):
    case = maker(4, 140, 272, seed=cases.fresh_seed(), **kind)
    exact = [[float(value) for value in row] for row in exact_gemm(case)]
    assert gemm_reference(*case.operands, **case.epilogue, out_dtype=torch.float64).tolist() == exact, str(case)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_magnitude_is_the_sum_of_absolute_terms(kind):
    case = cases.signed(3, 140, 272, seed=cases.fresh_seed(), **kind)
    negative = (case.a, -case.scales_a, case.b, case.scales_b)
    absolute = (case.a.float().abs().to(E4M3), case.scales_a, case.b.float().abs().to(E4M3), case.scales_b)
    absolute_terms = {name: term.abs() for name, term in case.epilogue.items()}
    expected = gemm_reference(*absolute, **absolute_terms, out_dtype=torch.float64)
    assert torch.equal(gemm_magnitude(*case.operands, **case.epilogue), expected), str(case)
    assert torch.equal(gemm_magnitude(*negative, **case.epilogue), expected), str(case)


def test_all_pairs_of_codes():
    """Subnormals, both zeros and NaN: each product alone, one-hot in K."""
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3)
    a, b = torch.zeros(256, 16, dtype=E4M3), torch.zeros(256, 16, dtype=E4M3)
    a[:, 5], b[:, 5] = codes, codes
    out = gemm_reference(a, torch.ones(256, 1), b, torch.ones(2, 1), out_dtype=torch.float32)
    expected = torch.outer(codes.float(), codes.float())
    assert torch.equal(out.nan_to_num(1e9), expected.nan_to_num(1e9))
    assert out.isnan().sum() == 2 * 512 - 4


def one_block(value: float, k: int = 128) -> Tensor:
    return torch.full((1, k), value).to(E4M3)


def test_scales_are_multiplied_in_float32():
    x, y = 1 + 2.0**-23, 1 + 2.0**-20
    out = gemm_reference(
        one_block(1, 16), torch.tensor([[x]]), one_block(1, 16), torch.tensor([[y]]), out_dtype=torch.float64
    )
    assert out.item() == 16 * float32(x * y) != 16 * x * y


@pytest.mark.parametrize(
    ("scale_a", "scale_b", "expected"),
    [
        (1e-23, 1e-20, 128 * float32(float32(1e-23) * float32(1e-20))),
        (2.0**-100, 2.0**-49, 128 * 2.0**-149),
        (2.0**-100, 2.0**-50, 0.0),
        (2.0**100, 2.0**28, math.inf),
        (-(2.0**100), 2.0**28, -math.inf),
        (-3.0, 0.5, -192.0),
        (0.0, 5.0, 0.0),
        (0.0, math.inf, math.nan),
        (1.0, math.nan, math.nan),
    ],
)
def test_extreme_scales(scale_a, scale_b, expected):
    out = gemm_reference(
        one_block(1), torch.tensor([[scale_a]]), one_block(1), torch.tensor([[scale_b]]), out_dtype=torch.float64
    )
    assert out.item() == expected or (math.isnan(expected) and out.isnan())


def test_infinite_scale_of_a_zero_block_sum_is_nan():
    a = torch.tensor([[1.0, -1.0] * 8, [1.0, 1.0] * 8]).to(E4M3)
    out = gemm_reference(a, torch.full((2, 1), math.inf), one_block(1, 16), torch.ones(1, 1))
    assert out[0, 0].isnan() and out[1, 0] == math.inf


@pytest.mark.parametrize("out_dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_partial_sums_have_the_range_of_float32(out_dtype):
    """2^127 + 2^127 - 2^127 is Inf in FP32 accumulators; in another order it is 2^127."""
    ones, scales_b = one_block(1, 384), torch.full((1, 3), 2.0**120)
    for signs, expected in (([1.0, 1, -1], math.inf), ([-1.0, -1, 1], -math.inf), ([1.0, -1, 1], 2.0**127)):
        out = gemm_reference(ones, torch.tensor([signs]), ones, scales_b, out_dtype=out_dtype)
        assert out.item() == expected


def test_nan_code_reaches_its_row_or_column_alone():
    case = cases.signed(6, 140, 272, seed=cases.fresh_seed())
    clean = gemm_reference(*case.operands)
    case.a[2, 271] = math.nan
    case.b[135, 0] = math.nan
    out = gemm_reference(*case.operands)
    hit = torch.zeros(6, 140, dtype=torch.bool)
    hit[2], hit[:, 135] = True, True
    assert torch.equal(out.isnan(), hit), str(case)
    assert torch.equal(out[~hit], clean[~hit]), str(case)


def test_scale_layouts_and_strided_operands_agree():
    case = cases.signed(6, 140, 272, seed=cases.fresh_seed())
    out = gemm_reference(*case.operands)
    a = torch.empty(6, 300, dtype=E4M3)[:, 5:277].copy_(case.a)
    b = torch.empty(272, 140, dtype=E4M3).t().copy_(case.b)
    for scales_a in (case.scales_a.contiguous(), to_mn_major(case.scales_a), case.scales_a.repeat(1, 2)[:, :3]):
        assert torch.equal(gemm_reference(a, scales_a, b, case.scales_b.t().contiguous().t()), out), str(case)


def test_tiling_of_the_output_changes_nothing(monkeypatch):
    case = cases.signed(19, 300, 272, seed=cases.fresh_seed())
    out = gemm_reference(*case.operands)
    monkeypatch.setattr(reference, "_TILE_ROWS", 8)
    monkeypatch.setattr(reference, "_TILE_COLUMNS", 100)
    assert torch.equal(gemm_reference(*case.operands), out), str(case)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_output_dtype_and_empty_m(out_dtype):
    case = cases.signed(0, 140, 272, seed=0)
    out = gemm_reference(*case.operands, out_dtype=out_dtype)
    assert out.shape == (0, 140) and out.dtype == out_dtype


def neighbours(dtype: torch.dtype) -> list[float]:
    """Every finite value of a 16-bit float type, in order; after the last, what the next binade would start with."""
    codes = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).double()
    values = codes[codes.isfinite()].unique().tolist()
    return [*values, 2 * values[-1] - values[-2]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_at_every_tie_and_beside_it(dtype):
    """Between any two neighbours: the tie goes to the even code, a hair more or less to the nearer one."""
    values = neighbours(dtype)
    lower, upper = torch.tensor(values[:-1], dtype=torch.float64), torch.tensor(values[1:], dtype=torch.float64)
    tie = (lower + upper) / 2
    below, above = torch.nextafter(tie, lower), torch.nextafter(tie, upper)
    codes_of_lower = lower.to(dtype).view(torch.int16)
    upper_or_inf = upper.to(dtype)
    even = torch.where(codes_of_lower % 2 == 0, lower.to(dtype), upper_or_inf)
    assert torch.equal(round_to_nearest_even(below, dtype), lower.to(dtype))
    assert torch.equal(round_to_nearest_even(above, dtype), upper_or_inf)
    assert torch.equal(round_to_nearest_even(tie, dtype), even)
    assert torch.equal(round_to_nearest_even(lower, dtype), lower.to(dtype))


def test_rounding_of_what_two_steps_would_get_wrong():
    value = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert value.float().bfloat16().item() == 1.0
    assert round_to_nearest_even(value, torch.bfloat16).item() == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounding_of_the_ends(dtype):
    values = torch.tensor([math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0, -0.0, 1e-300], dtype=torch.float64)
    out = round_to_nearest_even(values, dtype)
    assert out[0].isnan()
    assert out[1:].tolist() == [math.inf, -math.inf, math.inf, -math.inf, 0.0, 0.0, 0.0]
    assert out[6].signbit() and not out[5].signbit()


def test_dequantised_operands_give_the_product():
    """The other way to say it: dequantise both, multiply; equal but for the rounding of s."""
    case = cases.signed(5, 300, 400, seed=cases.fresh_seed())
    for dtype in (torch.float32, torch.float64):
        a = dequantize_activation(case.a, case.scales_a, dtype=dtype)
        b = dequantize_weight(case.b, case.scales_b, dtype=dtype)
        assert a.shape == case.a.shape and b.shape == case.b.shape and a.dtype == b.dtype == dtype
        error = (a.double() @ b.double().T - gemm_reference(*case.operands, out_dtype=torch.float64)).abs()
        assert (error <= 2.0**-22 * gemm_magnitude(*case.operands)).all(), str(case)


def operands(**changes: Tensor) -> dict[str, Tensor]:
    case = cases.signed(4, 200, 144, seed=0)
    return dict(zip(("a", "scales_a", "b", "scales_b"), case.operands, strict=True)) | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": torch.zeros(4, 144)}, "a: expected torch.float8_e4m3fn, got torch.float32"),
        ({"b": torch.zeros(144, dtype=E4M3)}, "b: expected 2 dimensions.*got shape \\(144,\\)"),
        ({"b": torch.zeros(200, 128, dtype=E4M3)}, "one K, got \\(4, 144\\) and \\(200, 128\\)"),
        ({"scales_a": torch.ones(4, 1)}, "scales_a: expected shape \\(4, 2\\).*got \\(4, 1\\)"),
        ({"scales_a": torch.ones(4, 2).bfloat16()}, "scales_a: expected torch.float32, got torch.bfloat16"),
        ({"scales_b": torch.ones(2, 1)}, "scales_b: expected shape \\(2, 2\\), one scale per 128x128 block of 200x144"),
        ({"scales_b": torch.ones(199, 2)}, "or \\(200, 2\\), one per row, got \\(199, 2\\)"),
        ({"scales_b": torch.ones(200, 3)}, "scales_b: expected shape \\(200, 2\\), one scale per 1x128 block"),
        ({"c": torch.zeros(4, 200).half()}, "c: expected torch.bfloat16 or torch.float32, got torch.float16"),
        ({"c": torch.zeros(200, 4)}, "c: expected shape \\(4, 200\\), got \\(200, 4\\)"),
        ({"c": torch.zeros(4, 200, device="meta")}, "c: expected the device of a, cpu, got meta"),
        ({"bias": torch.zeros(200).double()}, "bias: expected torch.bfloat16 or torch.float32, got torch.float64"),
        ({"bias": torch.zeros(1, 200)}, "bias: expected shape \\(200,\\), got \\(1, 200\\)"),
        ({"bias": torch.zeros(200, device="meta")}, "bias: expected the device of a, cpu, got meta"),
        ({"b": torch.zeros(200, 144, dtype=E4M3, device="meta")}, "expected one device, got cpu and meta"),
        ({"scales_b": torch.ones(2, 2, device="meta")}, "scales_b: expected the device of its codes, cpu, got meta"),
    ],
)
def test_bad_operands_are_named(changes, message):
    for function in (gemm_reference, gemm_magnitude):
        with pytest.raises(InputError, match=message):
            function(**operands(**changes))


def test_bad_dtypes_are_named():
    with pytest.raises(InputError, match="out_dtype: expected one of .*torch.float64, got torch.int8"):
        gemm_reference(**operands(), out_dtype=torch.int8)
    with pytest.raises(InputError, match="out_dtype: expected one of .*torch.float64, got 'half'"):
        gemm_reference(**operands(), out_dtype="half")
    with pytest.raises(InputError, match="dtype: expected one of torch.float32, torch.float64, got torch.bfloat16"):
        dequantize_weight(torch.zeros(4, 16, dtype=E4M3), torch.ones(1, 1), dtype=torch.bfloat16)
    with pytest.raises(InputError, match="activation: expected torch.float8_e4m3fn, got torch.float32"):
        dequantize_activation(torch.zeros(4, 16), torch.ones(4, 1))
