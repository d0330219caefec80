"""`fp8gemm.gemm_masked` on a Hopper GPU: any counts, both orientations, and rows past them neither read nor written.

Each product is computed as if groups had `FEW` valid rows, by a kernel of the swapped orientation; `TWO_TILES`, by one
whose clusters of two have CTAs and warpgroups without rows; and as if they had all that there is room for.
"""

from __future__ import annotations

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
from tests.gpu.faults.support import Guarded, amid_nans, poisoned_rows
from tests.grouped import MaskedCase, masked_case
from tests.orientation import FEW, TWO_TILES, choose_for_rows

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PRODUCTS = [(100, 128), (576, 272), (704, 2560), (2112, 7168)]
ROOMS = [(8, (0, 8, 1, 7, 3)), (77, (77, 0, 1, 64, 65, 8)), (300, (129, 300, 0, 1, 128, 63, 257)), (1024, (5, 700, 0))]
"""Room for rows of each group, and counts."""
UNEQUAL = 3e30
"""What no output holds."""

either = pytest.mark.parametrize("expected_m", [FEW, TWO_TILES, None], ids=["few", "two tiles", "all"])


@pytest.fixture(autouse=True)
def config_for_these_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_for_rows(request, monkeypatch)


def multiply(case: MaskedCase, out: Tensor | None = None, **options: object) -> Tensor:
    """The product into an output that is poisoned where a row is to be written."""
    out = case.poison() if out is None else case.poison_in(out)
    counts = options.pop("counts", None)
    counts = case.counts() if counts is None else counts
    assert fp8gemm.gemm_masked(*case.operands, counts, out=out, **options) is out
    return out


@either
@pytest.mark.parametrize(("max_m", "counts"), ROOMS)
@pytest.mark.parametrize(("n", "k"), PRODUCTS)
def test_any_counts(n, k, max_m, counts, expected_m, device, seed):
    case = masked_case(counts, max_m, n, k, seed=seed, device=device)
    out = multiply(case, expected_m=expected_m)
    case.check(out)
    assert same_bits(multiply(case, expected_m=expected_m, counts=case.counts(torch.int64)), out), str(case)


@either
@pytest.mark.parametrize(("n", "k"), [(100, 128), (2112, 7168)])
@pytest.mark.parametrize("maker", [cases.positive, cases.heavy_tailed, cases.small_integers, cases.distinct_scales])
def test_other_data(maker, n, k, expected_m, device, seed):
    max_m, counts = ROOMS[2]
    case = masked_case(counts, max_m, n, k, seed=seed, device=device, maker=maker)
    case.check(multiply(case, expected_m=expected_m))


@either
@pytest.mark.parametrize("n", [100, 576])
@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
@pytest.mark.parametrize("maker", [cases.signed, cases.small_integers])
def test_other_output_dtypes(maker, dtype, n, expected_m, device, seed):
    max_m, counts = ROOMS[1]
    case = masked_case(counts, max_m, n, 272, seed=seed, device=device, maker=maker)
    case.check(multiply(case, case.poison(dtype), expected_m=expected_m))
    new = fp8gemm.gemm_masked(*case.operands, case.counts(), expected_m=expected_m, out_dtype=dtype)
    assert new.is_contiguous() and new.dtype == dtype
    case.check(new, rest=False)


@either
def test_counts_out_of_range_are_clamped(expected_m, device, seed):
    for max_m in (8, 77, 300):
        asked = (max_m + 1, -1, 5, 2**31 - 1, -(2**31), max_m)
        case = masked_case(asked, max_m, 576, 272, seed=seed, device=device)
        clean = multiply(case, expected_m=expected_m)
        case.check(clean)
        far = torch.tensor([2**40, -(2**40), 5, 2**32 + 1, -(2**33) + 2, max_m], device=device)
        assert same_bits(multiply(case, expected_m=expected_m, counts=far), clean), str(case)


@either
@pytest.mark.parametrize("maker", [cases.small_integers, cases.distinct_scales])
@pytest.mark.parametrize("max_m", [4, 70])
def test_256_groups_of_few_rows(max_m, maker, expected_m, device, seed):
    draw = random.Random(seed)
    case = masked_case([draw.randrange(5) for _ in range(256)], max_m, 100, 128, seed=seed, device=device, maker=maker)
    case.check(multiply(case, expected_m=expected_m))


@either
def test_none_all_and_only_one(expected_m, device, seed):
    for counts in ((0, 0, 0, 0), (77, 77, 77, 77), (0, 0, 77, 0), (0, 0, 0, 1)):
        case = masked_case(counts, 77, 576, 272, seed=seed, device=device)
        case.check(multiply(case, expected_m=expected_m))
    case = masked_case((0, 0), 0, 576, 272, seed=seed, device=device)
    assert multiply(case, expected_m=expected_m).shape == (2, 0, 576)


@either
@pytest.mark.parametrize("n", [100, 576])
def test_canaries_around_the_output(n, expected_m, device, seed):
    max_m, counts = ROOMS[1]
    case = masked_case(counts, max_m, n, 272, seed=seed, device=device)
    rows = len(counts) * max_m
    for pitch, offset in ((n, 0), (n + 8, 8), (n + 3, 1)):
        output = Guarded(rows, n, BF16, device=device, strides=(pitch, 1), offset=offset)
        out = output.view.as_strided((len(counts), max_m, n), (max_m * pitch, pitch, 1))
        case.check(multiply(case, out, expected_m=expected_m))
        assert output.is_intact(), f"{case}, pitch {pitch}, offset {offset}"


@either
@pytest.mark.parametrize(("n", "k"), PRODUCTS)
def test_nan_past_the_end_of_every_input_changes_nothing(n, k, expected_m, device, seed):
    """Rows past each count, and the padding of scales, are NaN in every case."""
    max_m, counts = ROOMS[1]
    case = masked_case(counts, max_m, n, k, seed=seed, device=device)
    clean = multiply(case, expected_m=expected_m)
    poisoned = replace(
        case,
        a=_grouped(poisoned_rows(_rows(case.a), pitch_extra=16), max_m),
        scales_a=amid_nans(case.scales_a),
        b=_grouped(poisoned_rows(_rows(case.b), pitch_extra=16), n),
        scales_b=amid_nans(case.scales_b),
    )
    assert same_bits(multiply(poisoned, expected_m=expected_m), clean), str(case)
    row_major = replace(case, scales_a=case.scales_a.contiguous())
    assert same_bits(multiply(row_major, expected_m=expected_m), clean), str(case)


def _rows(groups: Tensor) -> Tensor:
    return groups.view(torch.uint8).flatten(0, 1).view(groups.dtype)


def _grouped(rows: Tensor, size: int) -> Tensor:
    shape = (rows.shape[0] // size, size, rows.shape[1])
    return rows.as_strided(shape, (size * rows.stride(0), rows.stride(0), 1))


@either
def test_nan_of_one_group_stays_in_it(expected_m, device, seed):
    max_m, counts = ROOMS[1]
    case = masked_case(counts, max_m, 576, 272, seed=seed, device=device)
    clean = multiply(case, expected_m=expected_m)
    for group in (0, 1, 4):
        b, scales_b = case.b.clone(), case.scales_b.clone()
        b[group], scales_b[group] = math.nan, math.nan
        found = multiply(replace(case, b=b, scales_b=scales_b), expected_m=expected_m)
        others = [other for other in range(len(counts)) if other != group]
        assert found[group, : counts[group]].isnan().all(), f"{case}, group {group}"
        assert same_bits(found[others], clean[others]), f"{case}, group {group}"


@pytest.mark.parametrize(("n", "k"), [(100, 128), (2112, 7168)])
def test_batch_invariant_rows_are_those_of_the_dense_product(n, k, device, seed):
    """Whatever kernel the number of rows is chosen for, and however many are valid."""
    max_m, counts = ROOMS[2]
    case = masked_case(counts, max_m, n, k, seed=seed, device=device)
    alone = [
        fp8gemm.gemm(a[:count], scales_a[:count], b, scales_b, batch_invariant=True)
        for count, a, scales_a, b, scales_b in zip(counts, *case.operands, strict=True)
    ]
    for expected_m in (FEW, 64, None):
        for fewer in (0, 1, 100):
            left = [max(count - fewer, 0) for count in counts]
            out = multiply(case, expected_m=expected_m, batch_invariant=True, counts=torch.tensor(left, device=device))
            for group, count in enumerate(left):
                found = f"{case}, expected_m {expected_m}, group {group}, {count} rows"
                assert same_bits(out[group, :count], alone[group][:count]), found


@either
@pytest.mark.parametrize(("n", "k"), [(576, 272), (2112, 7168)])
def test_repeated_runs_are_bitwise_equal(n, k, expected_m, device, seed):
    max_m, counts = ROOMS[2]
    case = masked_case(counts, max_m, n, k, seed=seed, device=device)
    first, given, out = multiply(case, expected_m=expected_m), case.counts(), case.poison()
    valid = (torch.arange(max_m, device=device) < given[:, None])[..., None]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(200):
        out.fill_(UNEQUAL)
        fp8gemm.gemm_masked(*case.operands, given, out=out, expected_m=expected_m)
        wrong += ((out != first) & valid).sum()
    assert not wrong.item(), str(case)


@either
@pytest.mark.parametrize(("groups", "max_m"), [(12, 77), (256, 8)])
def test_graph_replay_with_other_counts(groups, max_m, expected_m, device, seed):
    """1000 replays among 50 sets of counts: rows past them stay what they were."""
    draw = random.Random(seed)
    case = masked_case([max_m] * groups, max_m, 576, 272, seed=seed, device=device, maker=cases.small_integers)
    whole = multiply(case, expected_m=expected_m)
    case.check(whole)
    sets = [[draw.choice((0, 1, draw.randrange(max_m + 1), max_m)) for _ in range(groups)] for _ in range(50)]
    values = torch.tensor([[0] * groups, *sets], dtype=torch.int32, device=device)
    given, out, rows = values[0].clone(), torch.empty_like(whole), torch.arange(max_m, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.fill_(UNEQUAL)
        fp8gemm.gemm_masked(*case.operands, given, out=out, expected_m=expected_m)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(1000):
        index = draw.randrange(len(values))
        given.copy_(values[index])
        graph.replay()
        valid = (rows < values[index][:, None])[..., None]
        wrong += (out != torch.where(valid, whole, UNEQUAL)).sum()
    assert not wrong.item(), f"{wrong.item()} wrong elements, seed {seed}"


@either
@pytest.mark.parametrize("num_sms", [1, 3, 131])
def test_any_number_of_sms(num_sms, expected_m, device, seed):
    max_m, counts = ROOMS[2]
    for n, k in ((576, 272), (2112, 7168)):
        case = masked_case(counts, max_m, n, k, seed=seed, device=device)
        with settings.scope(num_sms=num_sms):
            case.check(multiply(case, expected_m=expected_m))


def test_counts_past_the_room_are_refused_where_a_setting_asks_for_it(device, seed):
    case = masked_case((3, 78, 0), 77, 576, 272, seed=seed, device=device)
    with settings.scope(check_groups=True), pytest.raises(fp8gemm.InputError, match="got 78 for group 1"):
        multiply(case)
