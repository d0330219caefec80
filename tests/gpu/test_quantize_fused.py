"""Quantisers that compute what they quantise, on the GPU: by the bounds of `tests.quantization`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.quantize import ROWS_OF_WARP, QuantizeSource, norm_threads, quantizer_of_norm
from fp8gemm.products.quantize import quantize_add_rms_norm, quantize_rms_norm, quantize_silu_mul
from fp8gemm.products.quantizers import rows_quantizer
from fp8gemm.reference import add_rms_norm
from fp8gemm.scales import is_mn_major
from fp8gemm.sizes import MAX_NORM_K
from fp8gemm.tuning.problem import InputType
from tests.calls import same_bits
from tests.quantization import check_fused, check_like_reference, exact_rms_norm, exact_silu_mul

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ROWS = (0, 1, 3, 4, 5, 63, 64, 65, 333, 1500)
WIDTHS = (16, 112, 144, 384, 2048, 4112, 7168, 16384)
SHAPES = sorted({*product(ROWS, (144, 4112)), *product((5, 150, 400), WIDTHS), (5, MAX_NORM_K)})
"""Every number of rows with a tail in K; every K with a norm's three numbers of threads; the longest row of a norm."""
WEIGHTS = {BF16: FP32, FP16: BF16, FP32: FP16}
"""By the input's dtype another one for the norm's weight."""

every_dtype = pytest.mark.parametrize("dtype", INPUTS, ids=str)
every_shape = pytest.mark.parametrize(("m", "k"), SHAPES)


@pytest.fixture(scope="module", autouse=True)
def _built(device: torch.device) -> None:
    """All kernels of these tests, compiled on all processors."""
    wanted = [rows_quantizer(QuantizeSource.SILU_MUL, dtype, rows) for dtype, rows in product(INPUTS, ROWS_OF_WARP)]
    for dtype, (m, k), residual in product(INPUTS, SHAPES, (False, True)):
        for weight in (dtype, WEIGHTS[dtype]):
            kinds: tuple[InputType, InputType] = INPUTS[dtype], INPUTS[weight]
            wanted.append(quantizer_of_norm(k, *kinds, residual=residual, threads=norm_threads(m, k)))
    build_many(list(dict.fromkeys(quantizer.request for quantizer in wanted)))


def normal(*shape: int, generator: torch.Generator, dtype: torch.dtype, size: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=generator, device=generator.device) * size).to(dtype)


def weights(k: int, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Tensor]:
    """Of both dtypes that are tested with an input of ``dtype``."""
    for each in (dtype, WEIGHTS[dtype]):
        yield normal(k, generator=generator, dtype=each)


@every_dtype
@every_shape
def test_silu_mul(m, k, dtype, generator):
    for size in (1.0, 20.0):  # the gate reaches -80 and more: where the exponential is large, and past its range
        x = normal(m, 2 * k, generator=generator, dtype=dtype, size=size)
        codes, scales = quantize_silu_mul(x)
        assert is_mn_major(scales)
        check_fused(codes, scales, exact_silu_mul(x), f"M={m} K={k} {dtype}, size {size}")


@every_dtype
@every_shape
def test_rms_norm(m, k, dtype, generator):
    x = normal(m, k, generator=generator, dtype=dtype)
    for weight, eps in zip(weights(k, dtype, generator), (1e-6, 0.5), strict=True):
        codes, scales = quantize_rms_norm(x, weight, eps=eps)
        assert is_mn_major(scales)
        check_fused(codes, scales, exact_rms_norm(x, weight, eps), f"M={m} K={k} {dtype}, {weight.dtype}, eps {eps}")


@every_dtype
@every_shape
def test_add_rms_norm(m, k, dtype, generator):
    x, residual = (normal(m, k, generator=generator, dtype=dtype, size=size) for size in (1.0, 3.0))
    before = x.clone(), residual.clone()
    for weight in weights(k, dtype, generator):
        codes, scales, summed = quantize_add_rms_norm(x, residual, weight)
        context = f"M={m} K={k} {dtype}, {weight.dtype}"
        assert same_bits(summed, (x.float() + residual.float()).to(dtype)) and summed.is_contiguous(), context
        check_fused(codes, scales, exact_rms_norm(summed, weight, 1e-6), context)
        assert same_bits(x, before[0]) and same_bits(residual, before[1]), context


SPECIAL = {
    "ordinary": (1.0, 1.0),
    "NaN": (math.nan, 1.0),
    "Inf": (math.inf, 1.0),
    "-Inf": (-math.inf, 1.0),
    "NaN in the other": (1.0, math.nan),
    "Inf in the other": (2.0, math.inf),
    "Inf of nothing": (0.0, math.inf),
    "Infs that cancel": (math.inf, -math.inf),
    "far below zero": (-200.0, 3.0),
    "where e^x ends": (-88.0, 3.0),
    "negative zero": (-0.0, 3.0),
}
"""One element of a row, and its partner in the other half or in the residual."""
SIZES = (1.0, 0.0, 1e30, 1e-30, 6e-8, 3e4)


def special(k: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two matrices: a row for each of `SPECIAL`, and one for each pair of `SIZES`."""
    pairs = list(product(SIZES, SIZES))
    made = []
    for side in range(2):
        rows = normal(len(SPECIAL) + len(pairs), k, generator=generator, dtype=FP32)
        rows[: len(SPECIAL), k - 7] = torch.tensor([pair[side] for pair in SPECIAL.values()], device=rows.device)
        rows[len(SPECIAL) :] *= torch.tensor([pair[side] for pair in pairs], device=rows.device)[:, None]
        made.append(rows.to(dtype))
    return made[0], made[1]


@every_dtype
@pytest.mark.parametrize("k", [16, 144, 400])
def test_special_values_of_silu_mul(k, dtype, generator):
    x = torch.cat(special(k, dtype, generator), dim=1)
    check_like_reference(quantize_silu_mul(x), quantize_silu_mul(x.cpu()), exact_silu_mul(x), f"K={k} {dtype}")


@every_dtype
@pytest.mark.parametrize("k", [16, 144, 400])
@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_special_values_of_norms(bad, k, dtype, generator):
    """Squares past float32's range make a row 0, as in the reference; float64, which has room for them, is no judge."""
    x, residual = special(k, dtype, generator)
    weight = normal(k, generator=generator, dtype=dtype)
    if bad is not None:
        weight[3] = bad
    cpu = x.cpu(), residual.cpu(), weight.cpu()
    context = f"K={k} {dtype}, weight {bad}"
    codes, scales, summed = quantize_add_rms_norm(x, residual, weight)
    expected_sum = add_rms_norm(*cpu, 1e-6)[1].to(x.device)
    assert torch.equal(summed.isnan(), expected_sum.isnan()), context
    assert same_bits(summed.nan_to_num(0.0, math.inf, -math.inf), expected_sum.nan_to_num(0.0, math.inf, -math.inf))
    expected = quantize_add_rms_norm(*cpu)[:2]
    assert_like((codes, scales), expected, summed, weight, context)
    assert_like(quantize_rms_norm(x, weight), quantize_rms_norm(cpu[0], cpu[2]), x, weight, context)


def assert_like(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], x: Tensor, weight: Tensor, context: str
) -> None:
    """NaN and Inf as in the reference, rows that vanish too, and all others by the formula."""
    vanish = (x.float().square().sum(1) == math.inf) & x.isfinite().all(1) & bool(weight.isfinite().all())
    codes, scales = found
    assert (codes[vanish].float() == 0).all() and (scales[vanish] == 1).all(), f"{context}: squares past the range"
    rest = ~vanish
    expected_rest = expected[0][rest.cpu()], expected[1][rest.cpu()]
    exact = exact_rms_norm(x[rest], weight, 1e-6)
    check_like_reference((codes[rest], scales[rest]), expected_rest, exact, context)


def test_zero_rows_have_scale_one(generator):
    weight = normal(400, generator=generator, dtype=BF16)
    zeros = torch.zeros(7, 400, device=weight.device, dtype=BF16)
    for codes, scales in (
        quantize_silu_mul(torch.cat([zeros, zeros], dim=1)),
        quantize_rms_norm(zeros, weight),
        quantize_add_rms_norm(zeros, zeros, weight)[:2],
    ):
        assert not codes.float().any() and (scales == 1).all()


def test_a_row_has_the_same_bits_amid_other_rows(generator):
    """As long as the number of rows does not change a norm's threads, which is what the sum's order depends on."""
    x = normal(128, 7168, generator=generator, dtype=BF16)
    weight = normal(7168, generator=generator, dtype=BF16)
    whole, silu = quantize_rms_norm(x, weight), quantize_silu_mul(x)
    for m in (1, 3, 64, 127):
        rows = slice(128 - m, 128)
        for found, expected in ((quantize_rms_norm(x[rows], weight), whole), (quantize_silu_mul(x[rows]), silu)):
            assert same_bits(found[0], expected[0][rows]) and same_bits(found[1], expected[1][rows]), m


@pytest.mark.parametrize("k", [400, 7168])
def test_of_any_m_a_row_of_a_norm_has_the_same_bits_where_they_may_not_depend_on_it(k, generator):
    x = normal(1500, k, generator=generator, dtype=BF16)
    weight = normal(k, generator=generator, dtype=BF16)
    with settings.scope(batch_invariant=True):
        norm, added = quantize_rms_norm(x, weight), quantize_add_rms_norm(x, x, weight)
        for m in (1, 64, 200, 700):
            rows = slice(1500 - m, 1500)
            found = *quantize_rms_norm(x[rows], weight), *quantize_add_rms_norm(x[rows], x[rows], weight)
            for one, whole in zip(found, (*norm, *added), strict=True):
                assert same_bits(one, whole[rows]), m


@pytest.mark.parametrize("m", [5, 4000, 12000])
def test_all_numbers_of_rows_of_a_warp_give_the_same_bits(m, generator):
    x = normal(m, 2 * 1040, generator=generator, dtype=BF16)
    whole = quantize_silu_mul(x)
    for rows in (slice(0, 1), slice(m // 2, m // 2 + 3), slice(m - 2, m)):
        part = quantize_silu_mul(x[rows])
        assert same_bits(part[0], whole[0][rows]) and same_bits(part[1], whole[1][rows])
