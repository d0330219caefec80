"""Every way to write an output: element types, stores, C, bias and both scalings, through the public calls."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.errors import InputError
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.gpu.faults.support import Kind, build_chosen

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
OUTPUTS = (BF16, FP16, FP32)
ADDENDS = (None, BF16, FP32)
# One tile and less; tails everywhere, too odd for TMA; several tiles, with tails; many.
SHAPES = [(1, 8, 16), (130, 101, 144), (333, 2112, 1040), (1024, 1536, 512)]

EVERY = list(itertools.product(Scaling, OUTPUTS, ADDENDS, ADDENDS))


@pytest.fixture(scope="module")
def compiled(device):
    """The kernels of `test_every_epilogue`, compiled on all processors at once."""
    kinds = [Kind(output, scaling, c, bias) for scaling, output, c, bias in EVERY]
    build_chosen((kind.problem(*shape) for kind in kinds for shape in SHAPES), device)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize(("scaling", "output", "c", "bias"), EVERY)
def test_every_epilogue(scaling, output, c, bias, m, n, k, device, seed, compiled):
    for maker in (cases.signed, cases.small_integers):
        case = maker(m, n, k, seed=seed, device=device, scaling=scaling, c=c, bias=bias)
        out = torch.full((m, n), math.nan, dtype=output, device=device)
        assert fp8gemm.gemm(*case.operands, **case.epilogue, out=out) is out
        case.check(out).raise_if_failed(f"{case}, {output}")


@pytest.mark.parametrize(("m", "n", "k"), [(1024, 576, 7168), (65, 300, 272)])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("scaling", Scaling)
@pytest.mark.parametrize("maker", [cases.positive, cases.heavy_tailed, cases.distinct_scales])
def test_other_data(maker, scaling, output, m, n, k, device, seed):
    case = maker(m, n, k, seed=seed, device=device, scaling=scaling)
    out = fp8gemm.gemm(*case.operands, out_dtype=output)
    assert out.dtype == output and out.is_contiguous()
    case.check(out).raise_if_failed(f"{case}, {output}")


@pytest.mark.parametrize("scaling", Scaling)
@pytest.mark.parametrize(("m", "n", "k"), [(2112, 1536, 16384), (1, 2, 16384)])
def test_positive_data_over_long_k(m, n, k, scaling, device, seed):
    """In FP32, where no rounding of the output hides what a kernel lost."""
    case = cases.positive(m, n, k, seed=seed, device=device, scaling=scaling)
    case.check(fp8gemm.gemm(*case.operands, out_dtype=FP32)).raise_if_failed(case)


@pytest.mark.parametrize("scaling", Scaling)
@pytest.mark.parametrize("output", [BF16, FP32])
@pytest.mark.parametrize(("n", "strides"), [(1536, (1536, 1)), (1536, (1544, 1)), (577, (577, 1)), (577, (1, 333))])
def test_the_output_may_be_c(n, strides, output, scaling, device, seed):
    """Accumulation in place, as gradients are; TMA and element-wise stores."""
    case = cases.signed(333, n, 1040, seed=seed, device=device, scaling=scaling, c=output)
    expected = fp8gemm.gemm(*case.operands, c=case.c, out_dtype=output)
    case.check(expected).raise_if_failed(case)
    out = torch.empty_strided((333, n), strides, dtype=output, device=device).copy_(case.c)
    fp8gemm.gemm(*case.operands, c=out, out=out)
    assert torch.equal(out, expected), str(case)


@pytest.fixture
def batch_invariant():
    """Another layout may mean another store and so another config; in this mode the bits are the same all the same."""
    with settings.scope(batch_invariant=True):
        yield


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("c_dtype", [BF16, FP32])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    "layout", ["padded rows", "odd base", "odd pitch", "column-major", "every other column", "one row for all"]
)
def test_c_of_any_layout(layout, output, c_dtype, device, seed):
    case = cases.signed(333, 1536, 272, seed=seed, device=device, c=c_dtype)
    expected = fp8gemm.gemm(*case.operands, c=case.c, out_dtype=output)
    if layout == "one row for all":
        c = case.c[:1].expand(333, 1536)
        expected = fp8gemm.gemm(*case.operands, c=c.contiguous(), out_dtype=output)
    else:
        strides, offset = {
            "padded rows": ((1600, 1), 0),
            "odd base": ((1536, 1), 1),
            "odd pitch": ((1537, 1), 0),
            "column-major": ((1, 335), 0),
            "every other column": ((3072, 2), 0),
        }[layout]
        storage = torch.full((offset + 333 * max(strides[0], 1) + 1536 * strides[1],), math.nan, device=device)
        c = storage.to(c_dtype).as_strided((333, 1536), strides, offset).copy_(case.c)
    assert torch.equal(fp8gemm.gemm(*case.operands, c=c, out_dtype=output), expected), str(case)


@pytest.mark.parametrize("bias_dtype", [BF16, FP32])
@pytest.mark.parametrize("output", [BF16, FP32])
def test_bias_from_the_middle_of_a_storage(output, bias_dtype, device, seed):
    case = cases.signed(65, 1000, 272, seed=seed, device=device, bias=bias_dtype)
    storage = torch.full((1007,), math.nan, dtype=bias_dtype, device=device)
    storage[3:1003] = case.bias
    expected = fp8gemm.gemm(*case.operands, bias=case.bias, out_dtype=output)
    assert torch.equal(fp8gemm.gemm(*case.operands, bias=storage[3:1003], out_dtype=output), expected), str(case)


@pytest.mark.parametrize("scaling", Scaling)
def test_plan_with_every_addend(scaling, device, seed):
    weight = cases.signed(1, 1536, 272, seed=seed, device=device, scaling=scaling, bias=BF16)
    for output, c_dtype in itertools.product(OUTPUTS, ADDENDS):
        plan = fp8gemm.plan(weight.b, weight.scales_b, max_m=256, bias=weight.bias, out_dtype=output, c_dtype=c_dtype)
        for m in (1, 64, 130, 256):
            tokens = cases.signed(m, 1536, 272, seed=seed + m, device=device, scaling=scaling, c=c_dtype)
            product = (tokens.a, tokens.scales_a, weight.b, weight.scales_b)
            expected = fp8gemm.gemm(*product, c=tokens.c, bias=weight.bias, out_dtype=output)
            assert torch.equal(plan(tokens.a, tokens.scales_a, c=tokens.c), expected), f"{output}, {tokens}"


def test_one_row_of_b_scaled_by_rows_in_any_layout(device, seed):
    case = cases.signed(65, 1, 512, seed=seed, device=device, scaling=Scaling.ROW)
    expected = fp8gemm.gemm(case.a, case.scales_a, case.b, case.scales_b.contiguous())
    case.check(expected).raise_if_failed(case)
    spread = torch.full((1, 16), math.nan, device=device)[:, ::4].copy_(case.scales_b)
    assert torch.equal(fp8gemm.gemm(case.a, case.scales_a, case.b, spread), expected)


@pytest.mark.parametrize("scaling", Scaling)
def test_k_in_pieces_through_c(scaling, device, seed):
    """A sum over K in four products, each adding to the last in FP32, is exact where the parts are."""
    case = cases.small_integers(130, 256, 2048, seed=seed, device=device, scaling=scaling)
    whole = fp8gemm.gemm(*case.operands, out_dtype=FP32)
    total = torch.zeros_like(whole)
    for k in range(0, 2048, 512):
        ks, blocks = slice(k, k + 512), slice(k // 128, k // 128 + 4)
        scales_b = case.scales_b[:, blocks]
        scales_b = scales_b.contiguous() if scaling is Scaling.BLOCK else scales_b
        fp8gemm.gemm(case.a[:, ks], case.scales_a[:, blocks], case.b[:, ks], scales_b, c=total, out=total)
    assert torch.equal(total, whole), str(case)


def test_a_refused_addend_launches_nothing(device, seed):
    case = cases.signed(64, 256, 512, seed=seed, device=device, c=FP32, bias=BF16)
    out = torch.full((64, 256), 7.0, dtype=FP32, device=device)
    for wrong in (
        {"c": case.c[:, :-1]},
        {"c": case.c.half()},
        {"c": case.c.cpu()},
        {"c": out.view(-1)[: 64 * 128].view(64, 128).expand(64, 128)},
        {"bias": case.bias[:-1]},
        {"bias": case.bias.half()},
        {"bias": case.bias.cpu()},
        {"bias": out[0]},
    ):
        with pytest.raises(InputError, match="expected"):
            fp8gemm.gemm(*case.operands, **wrong, out=out)
    torch.cuda.synchronize(device)
    assert (out == 7).all()
