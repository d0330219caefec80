"""The cases of `tests.grouped`: the public products pass their checks, what is wrong by a group or a row does not."""

from __future__ import annotations

import math

import pytest
import torch

import fp8gemm
from tests import cases
from tests.grouped import contiguous_case, in_order, k_grouped_case, masked_case

RUNS = [(-1, 3), (2, 5), (0, 9), (-1, 2), (3, 130), (-1, 1)]
MAKERS = [cases.signed, cases.positive, cases.heavy_tailed, cases.small_integers, cases.distinct_scales]
N, K = 100, 272


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_contiguous_products_pass(maker, dtype):
    case = contiguous_case(RUNS, N, K, seed=cases.fresh_seed(), maker=maker, groups=5)
    assert case.b.shape == (5, N, K) and case.a.shape == (150, K)
    for where in ({"indices": case.indices()}, {"offsets": case.bounds(torch.int64)}):
        out = case.poison(dtype)
        assert fp8gemm.gemm_grouped(*case.operands, **where, out=out) is out
        case.check(out)


def test_forms_of_offsets_say_the_same():
    case = contiguous_case([(-1, 3), *in_order((5, 0, 9)), (-1, 4)], N, K, seed=cases.fresh_seed(), groups=4)
    assert case.ranges == [(3, 8), (0, 0), (8, 17), (0, 0)]
    assert case.offsets().tolist() == [3, 8, 8, 17, 17]
    case.check(fp8gemm.gemm_grouped(*case.operands, offsets=case.offsets(), out=case.poison()))


@pytest.mark.parametrize("maker", MAKERS)
def test_contiguous_faults_fail(maker):
    case = contiguous_case(RUNS, N, K, seed=cases.fresh_seed(), maker=maker)
    right = fp8gemm.gemm_grouped(*case.operands, indices=case.indices(), out=case.poison())
    of_other_group = fp8gemm.gemm_grouped(
        *case.operands[:2], case.b.roll(1, 0), case.scales_b, indices=case.indices(), out=case.poison()
    )
    scales_of_other_group = fp8gemm.gemm_grouped(
        *case.operands[:3], case.scales_b.roll(1, 0), indices=case.indices(), out=case.poison()
    )
    missing = right.clone()
    missing[7] = math.nan
    for wrong in (of_other_group, scales_of_other_group, missing):
        with pytest.raises(AssertionError, match="group [023]: wrong by"):
            case.check(wrong)
    touched = right.clone()
    touched[18, 3] = 0.0
    with pytest.raises(AssertionError, match="1 of 6 rows of no group were written"):
        case.check(touched)
    case.check(touched, rest=False)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("max_m", [7, 66])
def test_masked_products_pass_and_faults_fail(maker, max_m):
    case = masked_case((0, 3, max_m, 1, max_m + 5, -2), max_m, N, K, seed=cases.fresh_seed(), maker=maker)
    assert case.valid == [0, 3, max_m, 1, max_m, 0]
    right = fp8gemm.gemm_masked(*case.operands, case.counts(), out=case.poison())
    case.check(right)
    for group, row, message in ((2, max_m - 1, "group 2: wrong by"), (1, 3, "rows of no group were written")):
        wrong = right.clone()
        wrong[group, row] = math.nan
        with pytest.raises(AssertionError, match=message):
            case.check(wrong)


@pytest.mark.parametrize("c", [False, True])
@pytest.mark.parametrize("maker", MAKERS)
def test_k_grouped_products_pass_and_faults_fail(maker, c):
    if c and maker is cases.distinct_scales:
        with pytest.raises(ValueError, match="no C"):
            k_grouped_case((128,), 4, 4, seed=0, maker=maker, c=True)
        return
    case = k_grouped_case((256, 0, 128, 384), 66, 40, seed=cases.fresh_seed(), maker=maker, c=c)
    right = fp8gemm.gemm_k_grouped(*case.operands, case.offsets(), c=case.c, out=case.poison())
    case.check(right)
    for wrong in (right.roll(1, 0), right * torch.tensor([1.0, 1.0, 1.02, 1.0])[:, None, None]):
        with pytest.raises(AssertionError):
            case.check(wrong)
    wrong = right.clone()
    wrong[1, 5, 5] = -0.0 if wrong[1, 5, 5] == 0 else math.nan
    with pytest.raises(AssertionError, match="group 1 is empty and not its C"):
        case.check(wrong)
