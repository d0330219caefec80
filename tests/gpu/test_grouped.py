"""`fp8gemm.gemm_grouped` on a Hopper GPU: groups of any size anywhere, both orientations, and what stays untouched.

Each product is computed as if groups had `FEW` rows, by a kernel of the swapped orientation; `TWO_TILES`, by one whose
clusters of two have CTAs and warpgroups without rows; and `MANY`, by one that loads last tiles in pieces.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from tests import cases
from tests.calls import same_bits
from tests.gpu.faults.support import Guarded, amid_nans, poisoned_rows, poisoned_scales
from tests.grouped import ContiguousCase, Run, contiguous_case, in_order
from tests.orientation import FEW, MANY, TWO_TILES, choose_for_rows

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PRODUCTS = [(8, 112), (100, 128), (576, 256), (1000, 256), (2112, 7168), (4096, 2048)]
"""N and K: an N that no TMA store takes, partial tiles and K blocks, one that no tile divides, two of real layers."""

SIZES = (0, 1, 7, 63, 64, 65, 0, 127, 128, 129, 257, 3)
UNEQUAL = 3e30
"""What no output holds."""

MAKERS = [cases.positive, cases.heavy_tailed, cases.small_integers, cases.distinct_scales]

either = pytest.mark.parametrize("expected_m", [FEW, TWO_TILES, MANY])


@pytest.fixture(autouse=True)
def config_for_these_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_for_rows(request, monkeypatch)


def mixed_runs(seed: int, sizes: tuple[int, ...] = SIZES) -> list[Run]:
    """The groups in any order, rows of none before, after and between some of them."""
    draw = random.Random(seed)
    groups = [(group, rows) for group, rows in enumerate(sizes) if rows]
    draw.shuffle(groups)
    runs: list[Run] = [(-1, 3)]
    for run in groups:
        runs += [run, (-1, draw.choice((0, 0, 1, 61, 130)))]
    return [*runs[:-1], (-1, 2)]


def multiply(case: ContiguousCase, out: Tensor | None = None, **options: object) -> Tensor:
    """The product into an output that is poisoned where a row is to be written, with the case's indices by default."""
    out = case.poison() if out is None else case.poison_in(out)
    where = {} if {"offsets", "indices"} & options.keys() else {"indices": case.indices()}
    assert fp8gemm.gemm_grouped(*case.operands, out=out, **where, **options) is out
    return out


@either
@pytest.mark.parametrize(("n", "k"), PRODUCTS)
def test_groups_of_any_size_anywhere(n, k, expected_m, device, seed):
    case = contiguous_case(mixed_runs(seed), n, k, seed=seed, device=device, groups=len(SIZES))
    case.check(multiply(case, expected_m=expected_m))
    # One right after another, where a tile's rows past its group belong to the next.
    case = contiguous_case(in_order(SIZES), n, k, seed=seed, device=device)
    case.check(multiply(case, expected_m=expected_m, offsets=case.offsets()))


@either
@pytest.mark.parametrize(("n", "k"), [(100, 128), (2112, 7168)])
@pytest.mark.parametrize("maker", MAKERS)
def test_other_data(maker, n, k, expected_m, device, seed):
    case = contiguous_case(mixed_runs(seed), n, k, seed=seed, device=device, maker=maker, groups=len(SIZES))
    case.check(multiply(case, expected_m=expected_m))


@either
@pytest.mark.parametrize("n", [100, 576])
@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
@pytest.mark.parametrize("maker", [cases.signed, cases.distinct_scales])
def test_other_output_dtypes(maker, dtype, n, expected_m, device, seed):
    case = contiguous_case(mixed_runs(seed), n, 256, seed=seed, device=device, maker=maker, groups=len(SIZES))
    out = case.poison(dtype)
    case.check(multiply(case, out, expected_m=expected_m))
    new = fp8gemm.gemm_grouped(*case.operands, indices=case.indices(), expected_m=expected_m, out_dtype=dtype)
    assert new.is_contiguous() and new.dtype == dtype
    case.check(new, rest=False)


@either
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_every_way_to_say_whose_a_row_is(dtype, expected_m, device, seed):
    options = {"seed": seed, "device": device, "groups": len(SIZES) + 2}
    inside = contiguous_case([(-1, 5), *in_order(SIZES), (-1, 9)], 576, 256, **options)
    packed = contiguous_case([*in_order(SIZES), (-1, 9)], 576, 256, **options)
    mixed = contiguous_case(mixed_runs(seed), 576, 256, **options)
    for case in (inside, packed, mixed):
        by_indices = multiply(case, expected_m=expected_m, indices=case.indices(dtype))
        case.check(by_indices)
        ways = [case.bounds(dtype)]
        if case is not mixed:
            ways += [case.offsets(dtype)]
        if case is packed:
            ways += [case.offsets(dtype)[1:].clone()]
        for offsets in ways:
            assert same_bits(multiply(case, expected_m=expected_m, offsets=offsets), by_indices), f"{case}, {offsets}"


@either
@pytest.mark.parametrize("n", [100, 576])
def test_canaries_around_the_output(n, expected_m, device, seed):
    case = contiguous_case(mixed_runs(seed), n, 256, seed=seed, device=device, groups=len(SIZES))
    m = case.a.shape[0]
    for strides, offset in (((n, 1), 0), ((n + 8, 1), 8), ((n + 3, 1), 1), ((1, m + 5), 0)):
        output = Guarded(m, n, BF16, device=device, strides=strides, offset=offset)
        case.check(multiply(case, output.view, expected_m=expected_m))
        assert output.is_intact(), f"{case}, strides {strides}, offset {offset}"


@either
@pytest.mark.parametrize(("n", "k"), [(100, 128), (576, 256), (2112, 7168)])
def test_nan_past_the_end_of_every_input_changes_nothing(n, k, expected_m, device, seed):
    case = contiguous_case(mixed_runs(seed), n, k, seed=seed, device=device, groups=len(SIZES))
    clean = multiply(case, expected_m=expected_m)
    groups = case.b.shape[0]
    b = poisoned_rows(case.b.view(torch.uint8).view(groups * n, k).view(case.b.dtype), pitch_extra=16)
    poisoned = replace(
        case,
        a=poisoned_rows(case.a, pitch_extra=16),
        scales_a=poisoned_scales(case.scales_a),
        b=b.as_strided((groups, n, k), (n * b.stride(0), b.stride(0), 1)),
        scales_b=amid_nans(case.scales_b),
    )
    assert same_bits(multiply(poisoned, expected_m=expected_m), clean), str(case)
    row_major = replace(case, scales_a=case.scales_a.contiguous())
    assert same_bits(multiply(row_major, expected_m=expected_m), clean), str(case)


@either
def test_nan_of_one_group_stays_in_it(expected_m, device, seed):
    case = contiguous_case(in_order(SIZES), 576, 256, seed=seed, device=device)
    clean = multiply(case, expected_m=expected_m)
    for group in (4, 6, 8):
        b, scales_b = case.b.clone(), case.scales_b.clone()
        b[group], scales_b[group] = math.nan, math.nan
        found = multiply(replace(case, b=b, scales_b=scales_b), expected_m=expected_m)
        hit = case.indices() == group
        assert found[hit].isnan().all() and same_bits(found[~hit], clean[~hit]), f"{case}, group {group}"


@either
def test_one_group_gets_all_and_none_gets_any(expected_m, device, seed):
    for runs in ([(5, 1000)], [(0, 3)], [(8, 129)]):
        case = contiguous_case(runs, 576, 256, seed=seed, device=device, groups=9)
        case.check(multiply(case, expected_m=expected_m))
    case = contiguous_case([(-1, 300)], 576, 256, seed=seed, device=device, groups=9)
    for where in (
        {"indices": case.indices()},
        {"offsets": case.bounds()},
        {"offsets": torch.zeros_like(case.bounds()[0])},
    ):
        case.check(multiply(case, expected_m=expected_m, **where))
    empty = contiguous_case([], 576, 256, seed=seed, device=device, groups=9)
    assert multiply(empty, expected_m=expected_m).shape == (0, 576)


@either
@pytest.mark.parametrize("most", [4, 70])
@pytest.mark.parametrize("maker", [cases.small_integers, cases.distinct_scales])
def test_256_groups(maker, most, expected_m, device, seed):
    draw = random.Random(seed)
    sizes = [draw.choice((0, 1, 2, 3, most)) for _ in range(256)]
    case = contiguous_case(in_order(sizes), 100, 128, seed=seed, device=device, maker=maker)
    case.check(multiply(case, expected_m=expected_m))
    case.check(multiply(case, expected_m=expected_m, offsets=case.offsets()))


@pytest.mark.parametrize(("n", "k"), [(100, 128), (2112, 7168)])
def test_batch_invariant_rows_are_those_of_the_dense_product(n, k, device, seed):
    """Whatever kernel the number of rows is chosen for, and whatever is beside a group."""
    case = contiguous_case(mixed_runs(seed), n, k, seed=seed, device=device, groups=len(SIZES))
    alone = [
        fp8gemm.gemm(case.a[rows], case.scales_a[rows], b, scales_b, batch_invariant=True)
        for rows, b, scales_b in zip(itertools.starmap(slice, case.ranges), case.b, case.scales_b, strict=True)
    ]
    for expected_m in (FEW, MANY, None):
        out = multiply(case, expected_m=expected_m, batch_invariant=True)
        for (begin, end), expected in zip(case.ranges, alone, strict=True):
            assert same_bits(out[begin:end], expected), f"{case}, expected_m {expected_m}, rows {begin} to {end}"
        # Each group with other neighbours: those before and after it are empty.
        for group in (2, 5, 10):
            begin, end = case.ranges[group]
            bounds = torch.zeros_like(case.bounds())
            bounds[:, group] = torch.tensor([begin, end], device=device)
            out = multiply(case, expected_m=expected_m, batch_invariant=True, offsets=bounds)
            assert same_bits(out[begin:end], alone[group]), f"{case}, expected_m {expected_m}, group {group}"


@either
@pytest.mark.parametrize(("n", "k"), [(576, 256), (2112, 7168)])
def test_repeated_runs_are_bitwise_equal(n, k, expected_m, device, seed):
    case = contiguous_case(mixed_runs(seed), n, k, seed=seed, device=device, groups=len(SIZES))
    first, indices, out = multiply(case, expected_m=expected_m), case.indices(), case.poison()
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(200):
        out.fill_(UNEQUAL)
        fp8gemm.gemm_grouped(*case.operands, indices=indices, out=out, expected_m=expected_m)
        wrong += ((out != first) & (indices >= 0)[:, None]).sum()
    assert not wrong.item(), str(case)


@either
@pytest.mark.parametrize("form", ["offsets", "indices"])
def test_graph_replay_with_other_groups(form, expected_m, device, seed):
    """1000 replays among 20 layouts of the same rows: those of no group stay what they were."""
    n, k, m, groups, draw = 576, 256, 700, 12, random.Random(seed)
    dense = cases.small_integers(m, groups * 640, k, seed=seed, device=device)
    b, scales_b = dense.b.view(groups, 640, k)[:, :n], dense.scales_b.view(groups, 5, -1)
    operands = dense.a, dense.scales_a, b.view(torch.uint8).contiguous().view(b.dtype), scales_b
    layouts = []
    for _ in range(20):
        limits = sorted(draw.choice((0, draw.randrange(m + 1))) for _ in range(groups + 1))
        layout = [-1] * m
        for group, (begin, end) in enumerate(itertools.pairwise(limits)):
            layout[begin:end] = [group] * (end - begin)
        layouts.append(limits if form == "offsets" else layout)
    values = torch.tensor(layouts, dtype=torch.int32, device=device)
    expected = []
    for value in values:
        out = torch.full((m, n), UNEQUAL, dtype=BF16, device=device)
        expected.append(fp8gemm.reference.gemm_grouped_reference(*operands, **{form: value}, out=out))
    given, out = values[0].clone(), torch.empty(m, n, dtype=BF16, device=device)
    run = {form: given, "out": out, "expected_m": expected_m}
    fp8gemm.gemm_grouped(*operands, **run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.fill_(UNEQUAL)
        fp8gemm.gemm_grouped(*operands, **run)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(1000):
        index = draw.randrange(len(layouts))
        given.copy_(values[index])
        graph.replay()
        wrong += (out != expected[index]).sum()
    assert not wrong.item(), f"{wrong.item()} wrong elements, seed {seed}"


@either
def test_groups_out_of_range_are_clamped(expected_m, device, seed):
    case = contiguous_case([(0, 70), (1, 5), (2, 100)], 576, 256, seed=seed, device=device)
    clean = multiply(case, expected_m=expected_m)
    far = 2**40
    for offsets in (
        [-5, 70, 75, 176],
        [-far, 70, 75, far],
        [70, 75, far],
        [[-1, 70, 75], [70, 75, 2**31 - 1]],
        [[-far, 70, 75], [70, 75, far]],
    ):
        for dtype in (torch.int32, torch.int64):
            given = torch.tensor(offsets)
            given = (given.clamp(-(2**31), 2**31 - 1) if dtype == torch.int32 else given).to(dtype).to(device)
            assert same_bits(multiply(case, expected_m=expected_m, offsets=given), clean), f"{case}, {offsets}"
    for offsets in ([[0, 70, 80], [70, 75, 75]], [[0, 70, 999], [70, 75, 9999]], [[0, 70, 75], [70, 75, -far]]):
        out = multiply(case, expected_m=expected_m, offsets=torch.tensor(offsets, device=device))
        assert same_bits(out[:75], clean[:75]) and out[75:].isnan().all(), f"{case}, {offsets}"
    for none in (-1, -2, 3, 99, 2**31 - 1, -(2**31), far, -far):
        indices = case.indices(torch.int64)
        indices[70:75] = none
        out = multiply(case, expected_m=expected_m, indices=indices)
        hit = case.indices() == 1
        assert out[hit].isnan().all() and same_bits(out[~hit], clean[~hit]), f"{case}, index {none}"


@either
@pytest.mark.parametrize("num_sms", [1, 3, 131])
def test_any_number_of_sms(num_sms, expected_m, device, seed):
    for n, k in ((576, 256), (2112, 7168)):
        case = contiguous_case(mixed_runs(seed), n, k, seed=seed, device=device, groups=len(SIZES))
        with settings.scope(num_sms=num_sms):
            case.check(multiply(case, expected_m=expected_m))


def test_wrong_groups_are_refused_where_a_setting_asks_for_it(device, seed):
    case = contiguous_case(in_order((5, 9)), 576, 256, seed=seed, device=device)
    with settings.scope(check_groups=True):
        case.check(multiply(case))
        with pytest.raises(fp8gemm.InputError, match="got 7 for row 3"):
            multiply(case, indices=case.indices().index_fill(0, torch.tensor([3], device=device), 7))
