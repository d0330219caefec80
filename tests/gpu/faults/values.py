"""Special values: NaN, Inf, all codes, odd scales, scales of powers of two, overflow. Each is confined to its place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.products.quantize import quantize_activation, quantize_weight
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.support import (
    BF16,
    E4M3,
    F16,
    F32,
    KINDS,
    PLAIN_KINDS,
    Kind,
    build_chosen,
    every_kind,
    every_plain_kind,
    kernels_of_every_config,
    launch,
    multiply,
    nans,
)

NAN_SHAPES = [(7, 576, 512), (333, 2112, 7168), (65, 577, 144)]
OTHER_SHAPES = [(333, 584, 272), (333, 2112, 1040), (256, 256, 16), (130, 256, 128)]


@pytest.fixture(scope="module", autouse=True)
def built(device: torch.device) -> None:
    """Most kernels of this file, compiled at once rather than one by one."""
    kinds = dict.fromkeys((*KINDS, *PLAIN_KINDS))
    build_chosen((kind.problem(*shape) for kind in kinds for shape in (*NAN_SHAPES, *OTHER_SHAPES)), device)


@every_kind
@pytest.mark.parametrize(("m", "n", "k"), NAN_SHAPES)
def test_fault_06_nan_code_reaches_its_row_or_column_alone(kind, m, n, k, device, seed):
    case = cases.signed(m, n, k, seed=seed, device=device, **kind.options)
    clean = multiply(case, kind)
    case.a[m // 2, k - 1] = math.nan
    case.b[n - 3, 0] = math.nan
    out = multiply(case, kind)
    hit = torch.zeros(m, n, dtype=torch.bool, device=device)
    hit[m // 2], hit[:, n - 3] = True, True
    assert torch.equal(out.isnan(), hit), case
    assert same_bits(out[~hit], clean[~hit]), case


@every_kind
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_fault_06_nan_and_infinity_in_c_and_bias_reach_their_element_or_column_alone(kind, bad, device, seed):
    if kind.c is None and kind.bias is None:
        kind = replace(kind, c=BF16, bias=F32)
    m, n = 333, 584
    case = cases.signed(m, n, 272, seed=seed, device=device, **kind.options)
    clean = multiply(case, kind)
    hit = torch.zeros(m, n, dtype=torch.bool, device=device)
    if case.c is not None:
        case.c[m - 1, n - 1], hit[m - 1, n - 1] = bad, True
    if case.bias is not None:
        case.bias[130], hit[:, 130] = bad, True
    out = multiply(case, kind)
    assert torch.equal(out[hit].nan_to_num(7.0, 8.0, 9.0), torch.full_like(out[hit], bad).nan_to_num(7.0, 8.0, 9.0))
    assert same_bits(out[~hit], clean[~hit]), case


@every_plain_kind
def test_fault_07_all_pairs_of_codes(kind, device):
    """One-hot in K: subnormals, both zeros and NaN, each product alone and exact; 448 * 448 is past FP16's range."""
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(E4M3)
    scales = torch.ones(256, 1, device=device)
    scales_b = scales if kind.scaling is Scaling.ROW else torch.ones(2, 1, device=device)
    for k in range(16):
        a = torch.zeros(256, 16, dtype=E4M3, device=device)
        a[:, k] = codes
        case = Case("exact", k, a, scales, a.clone(), scales_b)
        case.check(multiply(case, kind)).raise_if_failed(f"all pairs of codes at k = {k}, {kind}")


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_fault_08_edges_of_the_range(dtype, device):
    """±448, NaN, Inf, zeros, 1e-30 and 1e30, a row each: what is documented, the CPU's bits, and a right product."""
    rows = {"edges": 448.0, "nan": 1.0, "inf": 1.0, "zeros": 0.0, "tiny": 1e-30, "huge": 1e30, "ones": 1.0}
    if dtype is F16:
        rows |= {"tiny": 6e-8, "huge": 65504.0}  # FP16 has no smaller and no larger
    x = torch.tensor(list(rows.values()), device=device).to(dtype)[:, None].repeat(1, 272)
    x[:, 1::2] *= -1
    row = {name: index for index, name in enumerate(rows)}
    x[row["nan"], 200], x[row["inf"], 200] = math.nan, math.inf
    codes, scales = quantize_activation(x)
    for found, expected in zip((codes, scales), quantize_activation(x.cpu()), strict=True):
        assert torch.equal(found.cpu().float().nan_to_num(-1.0, 1e38), expected.float().nan_to_num(-1.0, 1e38))
    for name in ("edges", "tiny", "huge", "ones"):
        assert codes[row[name]].float().abs().eq(448).all(), f"{name} do not fill the range"
        assert scales[row[name]].isfinite().all() and scales[row[name]].gt(0).all(), name
    assert not codes[row["zeros"]].float().any() and scales[row["zeros"]].eq(1).all()
    w = torch.randn(200, 272, device=device)
    w[:128, :128], w[150, 10] = 0.0, 448.0
    out = fp8gemm.gemm(codes, scales, *quantize_weight(w), out_dtype=F32)
    case = Case("heavy", 0, codes, scales, *quantize_weight(w))
    case.check(out).raise_if_failed(f"rows of {', '.join(rows)} in {dtype}")
    bad = out.isnan().any(1)
    assert bad[row["nan"]] and not bad[[row[name] for name in rows if name not in ("nan", "inf")]].any()
    assert not out[row["zeros"]].any()


SCALES = [0.0, -0.0, -1.0, -4.0, 1e-23, 2.0**-140, math.inf, -math.inf, math.nan]


@every_plain_kind
@pytest.mark.parametrize(("m", "n", "k"), [(7, 576, 512), (333, 2112, 1040)])
@pytest.mark.parametrize("scale", SCALES)
def test_fault_09_special_scales_stay_with_what_they_scale(kind, scale, m, n, k, device, seed):
    case = cases.small_integers(m, n, k, seed=seed, device=device, **kind.options)
    clean = multiply(case, kind)
    case.scales_a[m - 2, 0] = scale
    case.scales_b[1, -1] = scale
    # With sums of powers of two far apart, no accumulation is exact; the positions of NaN and Inf and the bound are.
    tiny = 0 < abs(scale) < 1e-20
    out = multiply(case, kind)
    replace(case, data="heavy" if tiny else "exact").check(out).raise_if_failed(f"{case}, scale {scale}")
    scaled = torch.zeros(m, n, dtype=torch.bool, device=device)
    scaled[m - 2] = True
    scaled[:, slice(1, 2) if kind.scaling is Scaling.ROW else slice(128, 256)] = True
    assert same_bits(out[~scaled], clean[~scaled]), f"{case}, scale {scale}"


@every_kind
@pytest.mark.parametrize(("m", "n", "k"), [(7, 576, 512), (333, 2112, 1040)])
@pytest.mark.parametrize("factor", [-1.7, 1e-23, 2.0**-126, 2.0**-140, 1e30])
def test_fault_09_extreme_scales_everywhere(kind, factor, m, n, k, device, seed):
    """Down to subnormal scales and outputs: nothing is flushed to zero."""
    case = cases.signed(m, n, k, seed=seed, device=device, **kind.options)
    case = replace(case, scales_a=case.scales_a * factor)
    case.check(multiply(case, kind)).raise_if_failed(f"{case}, scales times {factor}")


@every_plain_kind
def test_fault_09_product_of_scales_underflows_and_overflows_in_float32(kind, device, seed):
    """1e-23 * 1e-23 is 0 and 2^100 * 2^100 Inf before either meets a block sum."""
    case = cases.small_integers(130, 256, 128, seed=seed, device=device, **kind.options)
    case = replace(case, data="signed")
    half = 128 if kind.scaling is Scaling.ROW else 1
    case.scales_a[:65], case.scales_a[65:] = 1e-23, 2.0**100
    case.scales_b[:half], case.scales_b[half:] = 1e-23, 2.0**100
    out = multiply(case, kind)
    assert (out[:65, :128] == 0).all() and not out[65:, 128:].isfinite().any(), case
    case.check(out).raise_if_failed(case)


@every_plain_kind
def test_fault_10_a_power_of_two_of_its_own_in_every_scale_block(kind, device, seed):
    """Exact: an index or a transposition that is off shows as another power of two."""
    shapes = [(1, 8, 16), (129, 129, 144), (257, 136, 1040), (333, 577, 272), (128, 2112, 7168), (1000, 1032, 528)]
    build_chosen((kind.problem(*shape) for shape in shapes), device)
    for shape in shapes:
        case = cases.distinct_scales(*shape, seed=seed, device=device, **kind.options)
        case.check(multiply(case, kind)).raise_if_failed(case)


@pytest.mark.parametrize("m", [300, 77])
@pytest.mark.parametrize("kind", PLAIN_KINDS, ids=str)
def test_fault_10_under_every_config(kind, m, device, seed):
    n, k = 584, 1040
    case = cases.distinct_scales(m, n, k, seed=seed, device=device, **kind.options)
    problem = kind.problem(m, n, k)
    for kernel in kernels_of_every_config(problem, device):
        case.check(launch(kernel, case, nans(problem, device))).raise_if_failed(f"{case}, {kernel.config}")


def products_of(values: list[float], device: torch.device) -> Case:
    """A product whose element [i, i % 16] is exactly `values[i]`; the values are float32 numbers, the scales of A."""
    one_hot = torch.eye(16, device=device).repeat(-(-len(values) // 16), 1)[: len(values)]
    scales_a = torch.tensor(values, dtype=F32, device=device)[:, None].clone()
    return Case(
        "exact", 0, one_hot.to(E4M3), scales_a, torch.eye(16, device=device).to(E4M3), torch.ones(1, 1, device=device)
    )


# The largest number, the tie above it, which goes to Inf, and float32's neighbour below that tie, which does not.
LARGEST = {BF16: 2.0**128 - 2.0**120, F16: 65504.0, F32: 2.0**128 - 2.0**104}
TIES = {BF16: 2.0**128 - 2.0**119, F16: 65520.0}


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_fault_11_output_overflows_as_rounding_says(dtype, sign, device):
    tie = torch.tensor(TIES[dtype], dtype=F32)
    below = torch.nextafter(tie, torch.tensor(0.0)).item()
    values = [sign * value for value in (LARGEST[dtype], below, TIES[dtype], torch.finfo(F32).max, 0.5)]
    case = products_of(values, device)
    out = multiply(case, Kind(dtype))
    case.check(out).raise_if_failed(f"{values} as {dtype}")
    diagonal = [out[i, i].item() for i in range(5)]
    assert diagonal[:4] == [sign * LARGEST[dtype], sign * LARGEST[dtype], sign * math.inf, sign * math.inf]


def test_fault_11_output_overflows_to_infinity_as_rounding_says(device):
    """Times 2^119, 512 is past bfloat16's range, 511 a tie that goes there, and 510 its largest number."""
    a = torch.ones(128, 128, device=device).tril()
    b = 4 - torch.ones(16, 128, device=device).tril(-1)
    scales_a, scales_b = torch.full((128, 1), -(2.0**119), device=device), torch.ones(1, 1, device=device)
    case = Case("exact", 0, a.to(E4M3), scales_a, b.to(E4M3), scales_b)
    out = fp8gemm.gemm(*case.operands)
    assert out[127, :3].tolist() == [-math.inf, -math.inf, -510 * 2.0**119]
    case.check(out).raise_if_failed("output overflow")


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("term", ["c", "bias"])
def test_fault_11_c_and_bias_overflow_before_or_after_rounding_once(dtype, term, device):
    """The sum is FP32 and rounded once: 65504 + 15.5 stays, 65504 + 16 is a tie; and FP32's own range ends at 2^128."""
    below, tie = {F16: (15.5, 16.0), BF16: (2.0**118, 2.0**119), F32: (2.0**102, 2.0**103)}[dtype]
    terms = torch.tensor([below, tie, 0.0, -LARGEST[dtype]], dtype=F32, device=device)
    case = products_of([LARGEST[dtype]] * 4, device)
    if term == "c":
        c = torch.zeros(4, 16, device=device)
        c[range(4), range(4)] = terms
        case = replace(case, c=c)
    else:
        case = replace(case, bias=torch.cat([terms, terms.new_zeros(12)]))
    out = fp8gemm.gemm(*case.operands, **case.epilogue, out_dtype=dtype)
    case.check(out).raise_if_failed(f"{term} {terms.tolist()} as {dtype}")
    assert [out[i, i].item() for i in range(4)] == [LARGEST[dtype], math.inf, LARGEST[dtype], 0.0]


def test_fault_11_c_is_added_before_the_bias(device):
    """The largest number and C, again the largest, are Inf before a bias of its negative could bring them back."""
    case = products_of([LARGEST[F32]], device)
    c, bias = torch.zeros(1, 16, device=device), torch.zeros(16, device=device)
    c[0, 0], bias[0] = LARGEST[F32], -LARGEST[F32]
    case = replace(case, c=c, bias=bias)
    out = fp8gemm.gemm(*case.operands, **case.epilogue, out_dtype=F32)
    case.check(out).raise_if_failed("C before bias")
    assert out[0, 0].item() == math.inf


@every_plain_kind
def test_fault_11_accumulators_overflow_as_float32_does(kind, device):
    """A partial sum of 2^128 is Inf, whatever comes after: another block that would have brought it back, or C.
    In batch-invariant mode, where K blocks are added in ascending order whatever config is chosen."""
    k, big = 384, 2.0**127
    a = torch.zeros(3, k, device=device)
    a[:, ::128] = 1.0
    scales_a = torch.tensor([[big, big, -big], [big, -big, big], [-big, -big, big]], device=device)
    b = torch.zeros(16, k, device=device)
    b[:, ::128] = 1.0
    rows = 16 if kind.scaling is Scaling.ROW else 1
    case = Case("exact", 0, a.to(E4M3), scales_a, b.to(E4M3), torch.ones(rows, 3, device=device))
    with settings.scope(batch_invariant=True):
        out = multiply(case, kind)
    last = math.inf if kind.output is F16 else big
    assert out[:, 0].tolist() == [math.inf, last, -math.inf]
    case.check(out).raise_if_failed("accumulator overflow")
    c = torch.full((3, 16), -big, device=device)
    out = fp8gemm.gemm(*case.operands, c=c, out_dtype=kind.output, batch_invariant=True)
    assert out[:, 0].tolist() == [math.inf, 0.0, -math.inf]
