"""The references of the grouped products: where groups lie, each group's own product, and nothing else touched."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.reference import (
    gemm_grouped_reference,
    gemm_k_grouped_reference,
    gemm_masked_reference,
    gemm_reference,
    row_ranges,
)
from fp8gemm.scales import empty_mn_major, empty_mn_major_groups, is_mn_major
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import same_bits

M, N, K, GROUPS = 20, 140, 272, 3
BF16 = torch.bfloat16


def ints(*values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((0, 5, 5, 20), [(0, 5), (5, 5), (5, 20)]),
        ((2, 5, 9, 10), [(2, 5), (5, 9), (9, 10)]),
        ((5, 5, 20), [(0, 5), (5, 5), (5, 20)]),
        (((7, 0, 3), (20, 2, 3)), [(7, 20), (0, 2), (3, 3)]),
        ((-4, 5, 30, 99), [(0, 5), (5, 20), (20, 20)]),
        ((0, 9, 4, 12), [(0, 9), (9, 9), (4, 12)]),
        (((7, -5, 25), (3, 2, 30)), [(7, 7), (0, 2), (20, 20)]),
    ],
)
def test_ranges_of_offsets(offsets, expected, dtype):
    assert row_ranges(20, 3, offsets=ints(*offsets, dtype=dtype)) == expected


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ((0, 0, 1, 2, 2), [(0, 2), (2, 3), (3, 5)]),
        ((-1, 2, 2, -1, 0), [(4, 5), (0, 0), (1, 3)]),
        ((-1, 3, -9, 1, 99), [(0, 0), (3, 4), (0, 0)]),
        ((1, 0, 1, -1, 1), [(1, 2), (0, 5), (0, 0)]),
        ((), [(0, 0)] * 3),
    ],
)
def test_ranges_of_indices(indices, expected):
    assert row_ranges(len(indices), 3, indices=ints(*indices)) == expected
    assert row_ranges(len(indices), 3, indices=ints(*indices, dtype=torch.int64)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected one of the two, got none"),
        ({"indices": ints(0), "offsets": ints(0)}, "expected one of the two, got both"),
        ({"indices": ints(0, 1)}, r"indices: expected shape \(1,\) = \(M,\), got \(2,\)"),
        ({"indices": torch.zeros(1)}, "indices: expected torch.int32 or torch.int64, got torch.float32"),
        ({"offsets": ints(0, 1, 1, 1, 1)}, r"offsets: expected shape \(4,\) = \(G \+ 1,\).*got \(5,\)"),
        ({"offsets": ints((0, 1), (1, 1))}, r"\(2, 3\) = \(2, G\), got \(2, 2\)"),
        ({"offsets": ints(0, 1, 1, dtype=torch.int16)}, "offsets: expected torch.int32 or torch.int64"),
    ],
)
def test_bad_groups_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        row_ranges(1, 3, **arguments)


def grouped_operands() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(M, K) and (G, N, K), scales of whole blocks for each group."""
    case = cases.signed(M, GROUPS * 256, K, seed=cases.fresh_seed())
    return case.a, case.scales_a, case.b.view(GROUPS, 256, K)[:, :N], case.scales_b.view(GROUPS, 2, -1)


@pytest.mark.parametrize("out_dtype", [BF16, torch.float16, torch.float32, torch.float64], ids=str)
def test_each_group_is_its_own_product(out_dtype):
    a, scales_a, b, scales_b = grouped_operands()
    where = {"offsets": ints((12, 0, 3), (20, 2, 3))}
    out = gemm_grouped_reference(a, scales_a, b, scales_b, **where, out_dtype=out_dtype)
    expected = torch.zeros(M, N, dtype=out_dtype)
    expected[12:] = gemm_reference(a[12:], scales_a[12:], b[0], scales_b[0], out_dtype=out_dtype)
    expected[:2] = gemm_reference(a[:2], scales_a[:2], b[1], scales_b[1], out_dtype=out_dtype)
    assert torch.equal(out, expected) and out.dtype == out_dtype
    indices = ints(1, 1, *[-1] * 10, *[0] * 8)
    assert torch.equal(gemm_grouped_reference(a, scales_a, b, scales_b, indices=indices, out_dtype=out_dtype), out)
    given = torch.full((2 * M, N), math.nan, dtype=out_dtype)[::2]
    assert gemm_grouped_reference(a, scales_a, b, scales_b, **where, out=given) is given
    assert given[2:12].isnan().all()
    assert torch.equal(given[12:], out[12:]) and torch.equal(given[:2], out[:2])


@pytest.mark.parametrize("counts", [(0, 5, 2), (99, -1, 7)])
def test_masked_groups_are_their_own_products(counts):
    a, scales_a, b, scales_b = grouped_operands()
    a, scales_a = a[:18].view(GROUPS, 6, K), scales_a[:18].reshape(GROUPS, 6, -1)
    out = torch.full((GROUPS, 6, N), math.nan, dtype=BF16)
    assert gemm_masked_reference(a, scales_a, b, scales_b, ints(*counts), out=out) is out
    new = gemm_masked_reference(a, scales_a, b, scales_b, ints(*counts, dtype=torch.int64), out_dtype=BF16)
    for group, count in enumerate(min(max(count, 0), 6) for count in counts):
        product = gemm_reference(a[group], scales_a[group], b[group], scales_b[group])
        assert torch.equal(out[group, :count], product[:count]) and torch.equal(new[group, :count], product[:count])
        assert out[group, count:].isnan().all() and not new[group, count:].any()


SIZES = (256, 0, 128)


@pytest.mark.parametrize("offsets", [ints(0, 256, 256, 384), ints((0, 0, 256), (256, 0, 384)), ints(256, 256, 384)])
@pytest.mark.parametrize("in_place", [False, True])
def test_groups_along_k(offsets, in_place):
    case = cases.signed(M, N, sum(SIZES), seed=cases.fresh_seed(), scaling=Scaling.ROW)
    c = torch.randn(3, M, N)
    c[1, 0, :3] = torch.tensor([-0.0, math.nan, -math.inf])
    c[1].view(torch.int32)[0, 3] = 0x7FC12345  # a NaN of its own
    before = c.clone()
    out = c if in_place else torch.full_like(c, math.nan)
    assert gemm_k_grouped_reference(*case.operands, offsets, c=c, out=out) is out
    assert same_bits(out[1], before[1]) and (in_place or same_bits(c, before))
    for group, columns in ((0, slice(0, 256)), (2, slice(256, 384))):
        blocks = slice(columns.start // 128, columns.stop // 128)
        operands = (case.a[:, columns], case.scales_a[:, blocks], case.b[:, columns], case.scales_b[:, blocks])
        assert same_bits(out[group], gemm_reference(*operands, c=before[group], out_dtype=torch.float32)), str(case)


def test_groups_along_k_without_c():
    case = cases.signed(M, N, sum(SIZES), seed=cases.fresh_seed(), scaling=Scaling.ROW)
    offsets = ints(0, 256, 256, 384)
    out = gemm_k_grouped_reference(*case.operands, offsets)
    zeros = gemm_k_grouped_reference(*case.operands, offsets, c=torch.zeros(3, M, N))
    assert out.shape == (3, M, N) and torch.equal(out, zeros) and same_bits(out[1], torch.zeros(M, N))
    beyond = gemm_k_grouped_reference(*case.operands, ints(-128, 256, 256, 640))
    assert same_bits(out, beyond)


@pytest.mark.parametrize(
    ("offsets", "options", "message"),
    [
        (ints(0, 100, 384), {}, r"offsets: expected multiples of 128, got \[0, 100, 384\] for K = 384"),
        (ints(0, 128, 384), {"c": torch.zeros(5, M, N)}, r"offsets: expected shape \(6,\)"),
        (ints(0, 128, 384), {"c": torch.zeros(2, M, N).half()}, "c: expected torch.float32 of shape"),
        (ints(0, 128, 384), {"out": torch.zeros(2, N, M)}, "out: expected shape"),
    ],
)
def test_bad_arguments_along_k_are_named(offsets, options, message):
    case = cases.signed(M, N, 384, seed=0, scaling=Scaling.ROW)
    with pytest.raises(InputError, match=message):
        gemm_k_grouped_reference(*case.operands, offsets, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, sa, b, sb: (a, sa, b[0], sb), r"b, scales_b: expected \(G, N, K\)"),
        (lambda a, sa, b, sb: (a, sa, b, sb[:2]), r"b, scales_b: expected \(G, N, K\)"),
        (lambda a, sa, b, sb: (a.float(), sa, b, sb), "a: expected torch.float8_e4m3fn"),
    ],
)
def test_bad_operands_are_named(change, message):
    operands = change(*grouped_operands())
    with pytest.raises(InputError, match=message):
        gemm_grouped_reference(*operands, offsets=ints(0, 5, 5, 9))
    with pytest.raises(InputError, match="a, scales_a: expected|" + message):
        gemm_masked_reference(*operands, ints(1, 1, 1))


def test_bad_masked_counts_and_outputs_are_named():
    a, scales_a, b, scales_b = grouped_operands()
    operands = a[:18].view(GROUPS, 6, K), scales_a[:18].reshape(GROUPS, 6, -1), b, scales_b
    with pytest.raises(InputError, match=r"counts: expected shape \(3,\) = \(G,\), got \(2,\)"):
        gemm_masked_reference(*operands, ints(1, 1))
    with pytest.raises(InputError, match=r"out: expected shape \(3, 6, 140\), got \(6, 140\)"):
        gemm_masked_reference(*operands, ints(1, 1, 1), out=torch.zeros(6, N))


@pytest.mark.parametrize("rows", [1, 4, 6, 129])
def test_scales_of_groups_are_mn_major_in_each(rows):
    scales = empty_mn_major_groups(3, rows, 5, device=torch.device("cpu"))
    assert scales.shape == (3, rows, 5) and scales.dtype == torch.float32
    pitch = empty_mn_major(rows, 5, device=torch.device("cpu")).stride(1)
    assert scales.stride() == (5 * pitch, 1, pitch) and all(is_mn_major(group) for group in scales)
    assert scales.untyped_storage().nbytes() == 4 * 3 * 5 * pitch
