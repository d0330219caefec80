"""`fp8gemm.gemm_k_grouped` on a Hopper GPU: any sizes along K, with and without C, and empty groups bit for bit."""

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
from tests.gpu.faults.support import Guarded, poisoned_rows, poisoned_scales
from tests.grouped import KGroupedCase, k_grouped_case
from tests.orientation import choose_pairs

SIZES = (256, 0, 128, 1152, 0, 384, 128)
OUTPUTS = [(128, 256), (200, 136), (333, 101), (7, 8), (1000, 520)]
"""M and N: whole tiles and partial ones, and an N that no TMA store takes."""

HOW = ("without C", "with C", "in place")


def multiply(case: KGroupedCase, how: str = "with C", out: Tensor | None = None, **options: object) -> Tensor:
    """The product into an output full of NaN or, in place, into a copy of C."""
    out = case.poison() if out is None else out.fill_(math.nan)
    offsets = options.pop("offsets", None)
    offsets = case.offsets() if offsets is None else offsets
    if how == "in place":
        assert case.c is not None
        c = out.copy_(case.c)
    else:
        c = case.c
    assert fp8gemm.gemm_k_grouped(*case.operands, offsets, c=c, out=out, **options) is out
    return out


def case_of(how: str, sizes: tuple[int, ...], m: int, n: int, **options: object) -> KGroupedCase:
    return k_grouped_case(sizes, m, n, c=how != "without C", **options)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("m", "n"), OUTPUTS)
def test_groups_of_any_size(m, n, how, device, seed):
    case = case_of(how, SIZES, m, n, seed=seed, device=device)
    before = None if case.c is None else case.c.clone()
    case.check(multiply(case, how))
    assert before is None or same_bits(case.c, before), f"{case}: C was written"
    new = fp8gemm.gemm_k_grouped(*case.operands, case.offsets(torch.int64), c=case.c)
    assert new.is_contiguous()
    case.check(new)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("maker", [cases.positive, cases.heavy_tailed, cases.small_integers, cases.distinct_scales])
def test_other_data(maker, how, device, seed):
    if maker is cases.distinct_scales and how != "without C":
        how = "without C"  # its sums with a C would not be exact
    for m, n in ((200, 136), (333, 101)):
        case = case_of(how, SIZES, m, n, seed=seed, device=device, maker=maker)
        case.check(multiply(case, how))


@pytest.mark.parametrize("how", HOW[1:])
@pytest.mark.parametrize("n", [136, 101])
def test_empty_groups_keep_the_bits_of_c(n, how, device, seed):
    """Zeros with a sign, infinities and NaNs of their own."""
    case = case_of(how, SIZES, 200, n, seed=seed, device=device)
    assert case.c is not None
    bits = case.c.view(torch.int32)
    for group in (1, 4):
        draw = torch.Generator(device).manual_seed(seed + group)
        bits[group] = torch.randint(-(2**31), 2**31, (200, n), generator=draw, device=device).to(torch.int32)
        case.c[group, 0, :4] = torch.tensor([-0.0, math.inf, -math.inf, math.nan])
        bits[group, 1, 0], bits[group, 1, 1] = 0x7FC12345, 0x7F812345  # a quiet NaN and a signalling one
    case.check(multiply(case, how))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("sizes", [(0, 0, 0), (0, 1024, 0), (128,), (4096,), (0,) * 40 + (128,)])
def test_few_groups_and_empty_ones(sizes, how, device, seed):
    case = case_of(how, (*sizes, 128), 200, 136, seed=seed, device=device)
    if not any(sizes):  # columns, but none of any group
        case = replace(case, sizes=sizes, c=None if case.c is None else case.c[:-1])
    case.check(multiply(case, how))


@pytest.mark.parametrize("how", HOW)
def test_256_groups(how, device, seed):
    draw = random.Random(seed)
    sizes = tuple(draw.choice((0, 0, 128, 256)) for _ in range(255))
    case = case_of(how, (*sizes, 128), 72, 136, seed=seed, device=device, maker=cases.small_integers)
    case.check(multiply(case, how))


@pytest.mark.parametrize("how", ["without C", "in place"])
@pytest.mark.parametrize("m", [7, 128, 200, 333, 1000])
def test_clusters_that_share_b(m, how, device, seed, monkeypatch):
    """With an odd number of tiles along M the last cluster's second CTA has none of the group's rows."""
    n = 136
    every = [case_of(how, sizes, m, n, seed=seed, device=device) for sizes in (SIZES, (0, 1024, 0, 128), (4096, 640))]
    alone = [multiply(case, how) for case in every]
    choose_pairs(monkeypatch)
    for case, wanted in zip(every, alone, strict=True):
        found = multiply(case, how)
        case.check(found)
        assert same_bits(found, wanted), f"{case}: clusters have other bits"
        output = Guarded(len(case.sizes) * m, n, torch.float32, device=device, strides=(n, 1), offset=0)
        assert same_bits(multiply(case, how, output.view.view(len(case.sizes), m, n)), wanted), str(case)
        assert output.is_intact(), str(case)


def test_long_groups_of_positive_data(device, seed):
    """Where a kernel that does not promote is off by a tenth."""
    case = k_grouped_case((16384, 128, 7168), 200, 136, seed=seed, device=device, maker=cases.positive, c=True)
    case.check(multiply(case))


@pytest.mark.parametrize(("m", "n"), [(200, 136), (333, 101), (128, 256)])
def test_each_group_is_the_dense_product(m, n, device, seed):
    case = k_grouped_case(SIZES, m, n, seed=seed, device=device)
    out = multiply(case, "without C")
    for group, size in enumerate(SIZES):
        if size:
            dense = fp8gemm.gemm(*case.group(group).operands, out_dtype=torch.float32, batch_invariant=True)
            assert same_bits(out[group], dense), f"{case}, group {group}"


@pytest.mark.parametrize("how", HOW)
def test_every_way_to_say_where_a_group_is(how, device, seed):
    case = case_of(how, SIZES, 200, 136, seed=seed, device=device)
    expected, offsets = multiply(case, how), case.offsets(torch.int64)
    bounds = torch.stack((offsets[:-1], offsets[1:]))
    empty = offsets.diff() == 0
    elsewhere = bounds.masked_fill(empty, 640)
    far = offsets.clone()
    far[0], far[-1] = -(2**40), 2**40
    ways = {"sums": offsets[1:].clone(), "bounds": bounds, "empty groups elsewhere": elsewhere, "out of range": far}
    for name, given in ways.items():
        assert same_bits(multiply(case, how, offsets=given), expected), f"{case}, {name}"
        if name != "out of range":
            given = given.to(torch.int32)
            assert same_bits(multiply(case, how, offsets=given), expected), f"{case}, {name}"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", [136, 101])
def test_bytes_around_the_operands(n, how, device, seed):
    m = 200
    case = case_of(how, SIZES, m, n, seed=seed, device=device)
    clean = multiply(case, how)
    poisoned = replace(
        case,
        a=poisoned_rows(case.a, pitch_extra=16),
        scales_a=poisoned_scales(case.scales_a),
        b=poisoned_rows(case.b, pitch_extra=16),
        scales_b=poisoned_scales(case.scales_b),
    )
    assert same_bits(multiply(poisoned, how), clean), str(case)
    row_major = replace(case, scales_a=case.scales_a.contiguous(), scales_b=case.scales_b.contiguous())
    assert same_bits(multiply(row_major, how), clean), str(case)
    for pitch, offset in ((n, 0), (n + 4, 4), (n + 3, 1)):
        output = Guarded(len(SIZES) * m, n, torch.float32, device=device, strides=(pitch, 1), offset=offset)
        out = output.view.as_strided((len(SIZES), m, n), (m * pitch, pitch, 1))
        assert same_bits(multiply(case, how, out), clean), f"{case}, pitch {pitch}, offset {offset}"
        assert output.is_intact(), f"{case}, pitch {pitch}, offset {offset}"


def test_nan_of_one_group_stays_in_it(device, seed):
    case = k_grouped_case(SIZES, 200, 136, seed=seed, device=device, c=True)
    clean = multiply(case)
    case.a[5, 256 + 3], case.b[7, 256 + 128 + 1] = math.nan, math.nan  # of groups 2 and 3
    found = multiply(case)
    hit = torch.zeros_like(found, dtype=torch.bool)
    hit[2, 5], hit[3, :, 7] = True, True
    assert torch.equal(found.isnan(), hit) and same_bits(found[~hit], clean[~hit]), str(case)


@pytest.mark.parametrize("num_sms", [1, 3, 131])
def test_any_number_of_sms(num_sms, device, seed):
    for how in HOW:
        case = case_of(how, SIZES, 333, 136, seed=seed, device=device)
        with settings.scope(num_sms=num_sms):
            case.check(multiply(case, how))


@pytest.mark.parametrize("how", HOW)
def test_repeated_runs_are_bitwise_equal(how, device, seed):
    case = case_of(how, SIZES, 333, 136, seed=seed, device=device)
    first, out, offsets = multiply(case, how), case.poison(), case.offsets()
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(200):
        if how == "in place":
            out.copy_(case.c)
        else:
            out.fill_(math.nan)
        fp8gemm.gemm_k_grouped(*case.operands, offsets, c=out if how == "in place" else case.c, out=out)
        wrong += (out != first).sum()
    assert not wrong.item(), str(case)


@pytest.mark.parametrize("how", HOW)
def test_graph_replay_with_other_sizes(how, device, seed):
    """1000 replays among 20 sets of offsets; what is in place is accumulated twice."""
    draw, blocks, groups = random.Random(seed), 16, 6
    case = case_of(how, (128 * blocks,) + (0,) * 5, 200, 136, seed=seed, device=device, maker=cases.small_integers)
    sets = [[0, *sorted(draw.randrange(blocks + 1) for _ in range(groups - 1)), blocks] for _ in range(20)]
    values = 128 * torch.tensor(sets, dtype=torch.int32, device=device)
    times, expected = 2 if how == "in place" else 1, []
    for value in values:
        total = case.c
        for _ in range(times):
            total = fp8gemm.reference.gemm_k_grouped_reference(*case.operands, value, c=total)
        expected.append(total)
    given, out = values[0].clone(), case.poison()
    multiply(case, how)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.fill_(math.nan) if how != "in place" else out.copy_(case.c)
        for _ in range(times):
            fp8gemm.gemm_k_grouped(*case.operands, given, c=out if how == "in place" else case.c, out=out)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(1000):
        index = draw.randrange(len(sets))
        given.copy_(values[index])
        graph.replay()
        wrong += (out != expected[index]).sum()
    assert not wrong.item(), f"{wrong.item()} wrong elements, seed {seed}"
