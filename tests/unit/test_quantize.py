"""Quantisation against a scalar implementation in Python floats, and at the ends of every range."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.products.quantize import quantize_activation, quantize_weight, to_mn_major
from fp8gemm.reference import dequantize_activation, dequantize_weight
from fp8gemm.scales import is_mn_major
from tests.cases import fresh_seed

E4M3 = torch.float8_e4m3fn
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
CODE_VALUES = torch.arange(127, dtype=torch.uint8).view(E4M3).double().tolist()


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def scalar_e4m3(value: float) -> float:
    """The nearest code, ties to the even one, saturating; the codes 0..126 are the values in order."""
    size = abs(value)
    code = min(range(127), key=lambda c: (abs(CODE_VALUES[c] - size), c % 2))
    return math.copysign(CODE_VALUES[code], value)


def scalar_quantize(block: list[float]) -> tuple[list[float], float]:
    """The module's formula; float32 of a double product or quotient of two float32 rounds as float32 would."""
    amax = max(map(abs, block))
    scale = max(float32(amax * float32(1 / 448)), 2.0**-126) if amax else 1.0
    return [scalar_e4m3(float32(value / scale)) for value in block], scale


def normal(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, int]:
    seed = fresh_seed()
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype), seed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 1e-6, 2000.0])
def test_activation_is_bitwise_the_formula(dtype, size):
    x, seed = normal(5, 272)
    x = (x * size).to(dtype)
    xq, scales = quantize_activation(x)
    for m, row in enumerate(x.double().tolist()):
        for block in range(3):
            codes, scale = scalar_quantize(row[128 * block : 128 * block + 128])
            assert scales[m, block].item() == scale, f"seed {seed}, row {m}, block {block}"
            assert xq[m, 128 * block : 128 * block + 128].double().tolist() == codes, f"seed {seed}, row {m}"


def test_true_division_at_every_tie_between_codes():
    """Multiplying by a reciprocal, or dividing with less care, lands on the other side of some of these."""
    amax, seed = normal(64, 1)
    scales = quantize_activation(amax.expand(64, 16).contiguous())[1]
    codes = torch.tensor(CODE_VALUES)
    ties = (scales.double() * (codes[1:] + codes[:-1]) / 2).float()
    x = torch.cat([amax, ties, torch.zeros(64, 1)], dim=1)
    xq, _ = quantize_activation(x)
    for m, row in enumerate(x.double().tolist()):
        assert xq[m].double().tolist() == scalar_quantize(row)[0], f"seed {seed}, row {m}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_is_bitwise_the_formula(dtype):
    w, seed = normal(130, 144, dtype)
    wq, scales = quantize_weight(w)
    assert scales.shape == (2, 2) and scales.is_contiguous() and wq.is_contiguous()
    for rows, i in ((slice(0, 128), 0), (slice(128, 130), 1)):
        for columns, j in ((slice(0, 128), 0), (slice(128, 144), 1)):
            codes, scale = scalar_quantize(w[rows, columns].double().flatten().tolist())
            assert scales[i, j].item() == scale, f"seed {seed}, block ({i}, {j})"
            assert wq[rows, columns].double().flatten().tolist() == codes, f"seed {seed}, block ({i}, {j})"


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 9),
    k=st.integers(1, 20).map(lambda blocks: 16 * blocks),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-14, 14),
    seed=st.integers(0, 2**31),
)
def test_round_trip_error_is_half_a_step(m, k, dtype, exponent, seed):
    largest = torch.finfo(dtype).max  # of float16 four times 2^14 is none any more
    values = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    x = values.clamp(-largest, largest).to(dtype)
    for (codes, scales), dequantize, rows in (
        (quantize_activation(x), dequantize_activation, 1),
        (quantize_weight(x), dequantize_weight, 128),
    ):
        assert codes.shape == x.shape and codes.dtype == E4M3 and codes.is_contiguous()
        step = scales.double().repeat_interleave(rows, 0)[:m].repeat_interleave(128, 1)[:, :k]
        error = (dequantize(codes, scales, dtype=torch.float64) - x.double()).abs()
        assert (error <= torch.maximum(x.double().abs() * 2.0**-4, step * 2.0**-10) * (1 + 1e-6)).all()


def test_every_block_uses_the_whole_range():
    x, seed = normal(256, 400)
    of_rows = torch.nn.functional.pad(quantize_activation(x)[0].float().abs(), (0, 112)).view(256, 4, 128)
    of_blocks = torch.nn.functional.pad(quantize_weight(x)[0].float().abs(), (0, 112)).view(2, 128, 4, 128)
    assert (of_rows.amax(2) == 448).all() and (of_blocks.amax((1, 3)) == 448).all(), f"seed {seed}"


@pytest.mark.parametrize("quantize", [quantize_activation, quantize_weight])
def test_zero_blocks_have_scale_one(quantize):
    x = torch.zeros(130, 272)
    x[129, 271] = -3.0
    codes, scales = quantize(x)
    assert scales[-1, -1].item() == float32(3.0 * float32(1 / 448)) and codes[129, 271].item() == -448
    assert (scales.flatten() == 1).sum() == scales.numel() - 1
    assert codes.float().count_nonzero() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [2.0**-149, 2.0**-133, 1e-38, 1e-36, 1e-30, 1e30, 3.3e38])
def test_tiny_and_huge_values(size, dtype):
    """Nothing finite becomes NaN or Inf; below amax = 448 * 2^-126 the step is fixed at 2^-135 instead of relative."""
    seed = fresh_seed()
    x = torch.rand(4, 256, generator=torch.Generator().manual_seed(seed)).mul(2).sub(1)
    x[:, ::100] = 1
    x = (x.double() * size).to(dtype)
    for (codes, scales), dequantize in (
        (quantize_activation(x), dequantize_activation),
        (quantize_weight(x), dequantize_weight),
    ):
        assert codes.float().isfinite().all() and scales.isfinite().all(), f"seed {seed}"
        assert (scales >= 2.0**-126).all(), f"seed {seed}"
        error = (dequantize(codes, scales, dtype=torch.float64) - x.double()).abs()
        allowed = (x.double().abs() * 2.0**-4).clamp(min=size * 2.0**-18).clamp(min=2.0**-136)
        assert (error <= allowed * (1 + 1e-6)).all(), f"seed {seed}"


@pytest.mark.parametrize("amax", [448.0, 449.0, 447.0, 1.0, 3.0, 1e-3, 65504.0])
def test_largest_value_gets_the_largest_code(amax):
    """Whatever way the scale was rounded, amax becomes 448, never the NaN beyond it."""
    x = torch.zeros(1, 16)
    x[0, 3], x[0, 9] = amax, -amax
    codes, _ = quantize_activation(x)
    assert codes[0, 3].item() == 448 and codes[0, 9].item() == -448


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_stay_in_their_block(bad, dtype):
    x, seed = normal(300, 400, dtype)
    for quantize, dequantize, rows in (
        (quantize_activation, dequantize_activation, slice(200, 201)),
        (quantize_weight, dequantize_weight, slice(128, 256)),
    ):
        clean_codes, clean_scales = quantize(x)
        y = x.clone()
        y[200, 130] = bad
        codes, scales = quantize(y)
        block = torch.zeros(300, 400, dtype=torch.bool)
        block[rows, 128:256] = True
        assert codes[200, 130].float().isnan(), f"seed {seed}"
        assert torch.equal(dequantize(codes, scales).isnan(), block), f"seed {seed}"
        assert torch.equal(codes.view(torch.uint8)[~block], clean_codes.view(torch.uint8)[~block]), f"seed {seed}"
        touched = scales != clean_scales
        assert touched.sum() == 1 and not scales[touched].isfinite(), f"seed {seed}"
        if math.isnan(bad):
            assert codes.float()[block].isnan().all(), f"seed {seed}"
        else:
            assert scales[touched].item() == math.inf and codes.float()[block].isnan().sum() == 1, f"seed {seed}"


@pytest.mark.parametrize("m", [0, 1, 3, 4, 5, 8, 130])
def test_scale_layouts(m):
    x, seed = normal(m, 272)
    codes, mn_major = quantize_activation(x)
    row_codes, row_major = quantize_activation(x, scale_layout="row_major")
    assert mn_major.shape == row_major.shape == (m, 3)
    assert mn_major.stride() == (1, -(-m // 4) * 4) and is_mn_major(mn_major)
    assert mn_major.untyped_storage().nbytes() == 4 * 3 * mn_major.stride(1), "every column's padding is ours"
    assert row_major.is_contiguous()
    assert torch.equal(mn_major, row_major), f"seed {seed}"
    assert torch.equal(codes.view(torch.uint8), row_codes.view(torch.uint8)), f"seed {seed}"


def test_to_mn_major_copies_only_when_it_must():
    scales = torch.rand(6, 5)
    moved = to_mn_major(scales)
    assert moved.stride() == (1, 8) and torch.equal(moved, scales)
    assert to_mn_major(moved) is moved
    wider = torch.rand(5, 12).t()[:6]
    assert wider.stride() == (1, 12) and to_mn_major(wider).stride() == (1, 8)
    assert torch.equal(to_mn_major(wider), wider)


def test_to_mn_major_names_bad_input():
    with pytest.raises(InputError, match="expected torch.float32, got torch.bfloat16"):
        to_mn_major(torch.ones(4, 2, dtype=torch.bfloat16))
    with pytest.raises(InputError, match="expected 2 dimensions.*got shape \\(4,\\)"):
        to_mn_major(torch.ones(4))


def test_rows_may_have_any_pitch_and_inputs_stay_as_they_were():
    storage, seed = normal(7, 400)
    x = storage[:, 16:288]
    before = storage.clone()
    for quantize in (quantize_activation, quantize_weight):
        codes, scales = quantize(x)
        same_codes, same_scales = quantize(x.contiguous())
        assert torch.equal(codes.view(torch.uint8), same_codes.view(torch.uint8)), f"seed {seed}"
        assert torch.equal(scales, same_scales) and torch.equal(storage, before), f"seed {seed}"


def test_parameters_are_taken_without_their_gradient():
    parameter = torch.nn.Parameter(torch.ones(128, 128))
    for tensor in (*quantize_weight(parameter), *quantize_activation(parameter)):
        assert not tensor.requires_grad and tensor.grad_fn is None


@pytest.mark.parametrize(("quantize", "name"), [(quantize_activation, "x"), (quantize_weight, "w")])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.ones(4, 24), "positive multiple of 16, got K = 24, shape \\(4, 24\\)"),
        (torch.ones(4, 0), "positive multiple of 16, got K = 0"),
        (torch.ones(16), "expected 2 dimensions, .*got shape \\(16,\\)"),
        (torch.ones(2, 4, 16), "expected 2 dimensions, .*got shape \\(2, 4, 16\\)"),
        (torch.ones(4, 16, dtype=torch.float64), "expected one of torch.bfloat16.*got torch.float64"),
        (torch.ones(4, 16).to(E4M3), "got torch.float8_e4m3fn"),
        (torch.ones(16, 32).t(), "K contiguous \\(stride 1\\), got strides \\(1, 32\\)"),
        (torch.ones(4, 32)[:, ::2], "K contiguous \\(stride 1\\), got strides \\(32, 2\\)"),
    ],
)
def test_bad_input_is_named(quantize, name, bad, message):
    with pytest.raises(InputError, match=f"^{name}: .*{message}"):
        quantize(bad)


def test_bad_layout_is_named():
    with pytest.raises(InputError, match='expected "mn_major" or "row_major", got \'column\''):
        quantize_activation(torch.ones(4, 16), scale_layout="column")
