"""Tiles of which the CTAs of a cluster divide K: any number of K blocks, every output, the order of sums, launches."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from fp8gemm.scales import to_mn_major
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind
from tests import cases
from tests.cases import Case
from tests.gpu.faults.support import KINDS, Kind, config_of, every_kind, launch, make_kernels, nans, poisoned

TILES = (
    "128x128-c1x1-split2",
    "128x128-c1x1-split4",
    "128x192-c1x1-split2",
    "128x192-c1x1-split3",
    "128x160-c1x1-split2",
    "128x256-c1x1-split2",
    "256x128-c1x1-split2",
    "64x128-c1x1-split4",
    "64x192-c1x1-split3",
    "64x256-c1x1-split2",
    "64x64-c1x1-split2",
    "64x64-c1x1-split4",
    "64x32-c1x1-split2",
    "128x64-c1x1-split4",
)
BY_ROWS = ("128x128-c1x1-split2", "64x128-c1x1-split2", "128x96-c1x1-split3")
# Fewer than shares, as many, one more; shares that end in zeros, and of more than 32; the last one partial.
K_BLOCKS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 26, 35, 68, 135)
M, N = 300, 1160


def run(problem: Problem, tile: str, case: Case) -> torch.Tensor:
    """The product under this tile, into an output full of NaN."""
    (kernel,) = make_kernels([(problem, config_of(problem, tile))], case.a.device)
    return launch(kernel, case, nans(problem, case.a.device))


def check_any_number_of_k_blocks(tile: str, scaling: Scaling, device: torch.device, seed: int) -> None:
    problems = [Problem(M, N, 128 * blocks - 16 * (blocks % 3), scaling=scaling) for blocks in K_BLOCKS]
    config = config_of(problems[0], tile)
    for kernel in make_kernels([(problem, config) for problem in problems], device):
        for maker in (cases.distinct_scales, cases.signed):
            case = maker(M, N, kernel.problem.k, seed=seed, device=device, scaling=scaling)
            case.check(launch(kernel, case, nans(kernel.problem, device))).raise_if_failed(f"{case}, {config}")


@pytest.mark.parametrize("tile", TILES)
def test_any_number_of_k_blocks(tile, device, seed):
    check_any_number_of_k_blocks(tile, Scaling.BLOCK, device, seed)


@pytest.mark.parametrize("tile", BY_ROWS)
def test_any_number_of_k_blocks_scaled_by_rows(tile, device, seed):
    check_any_number_of_k_blocks(tile, Scaling.ROW, device, seed)


@every_kind
@pytest.mark.parametrize("tile", ["128x128-c1x1-split2", "128x192-c1x1-split3", "64x128-c1x1-split4"])
@pytest.mark.parametrize("store", list(StoreKind), ids=lambda store: store.value)
def test_every_output_scaling_and_addend(store, tile, kind, device, seed):
    if kind.scaling is Scaling.ROW and tile.startswith("128x192"):
        tile = "128x96-c1x1-split3"
    for m, k in ((1, 272), (130, 1168), (777, 400)):
        problem = kind.problem(m, 584 if store is StoreKind.TMA else 577, k, store)
        for maker in (cases.small_integers, cases.signed):
            case = maker(problem.m, problem.n, problem.k, seed=seed, device=device, **kind.options)
            case.check(run(problem, tile, case)).raise_if_failed(f"{case}, {tile}")


def test_there_is_a_kind_of_every_scaling():
    assert {kind.scaling for kind in KINDS} == set(Scaling) and Kind() in KINDS


@pytest.mark.parametrize("tile", ["128x128-c1x1-split2", "128x192-c1x1-split3", "128x128-c1x1-split4"])
def test_shares_are_summed_apart_and_added_in_their_order(tile, device, seed):
    """The bits are those of the sum of as many products, each of one share of K."""
    plain, split = tile.split("-split")
    m, n, k = 300, 584, 128 * 13 - 48
    case = cases.signed(m, n, k, seed=seed, device=device)
    of_share = -(-13 // int(split))
    total = None
    for first in range(0, 13, of_share):
        blocks, columns = slice(first, first + of_share), slice(128 * first, 128 * (first + of_share))
        a, b = case.a[:, columns].contiguous(), case.b[:, columns].contiguous()
        scales_a, scales_b = to_mn_major(case.scales_a[:, blocks]), case.scales_b[:, blocks].contiguous()
        share = replace(case, a=a, b=b, scales_a=scales_a, scales_b=scales_b)
        sums = run(Problem(m, n, a.shape[1], OutputType.FLOAT32), plain, share)
        total = sums if total is None else total + sums
    whole = run(Problem(m, n, k, OutputType.FLOAT32), tile, case)
    case.check(whole).raise_if_failed(case)
    assert torch.equal(whole, total), f"{case}, {tile}"


@pytest.mark.parametrize("tile", ["128x128-c1x1-split2", "128x128-c1x1-split4", "64x192-c1x1-split3"])
def test_nothing_comes_from_past_the_last_k_block(tile, device, seed):
    """The last share ends in K blocks of zeros, or is nothing else: infinite sums stay so."""
    m, n = 70, 300
    for k, special in itertools.product((128, 272, 640, 16400), (math.nan, math.inf, -math.inf)):
        case = cases.small_integers(m, n, k, seed=seed, device=device)
        cases.put_special(case, special)
        out = run(Problem(m, n, k, OutputType.FLOAT32), tile, poisoned(case))
        case.check(out).raise_if_failed(f"{case}, {special}")


@pytest.mark.parametrize("tile", TILES)
def test_launches_one_after_another_give_the_same_bits(tile, device, seed):
    """Of few tiles, and of more clusters than run at once; each result is compared on the GPU."""
    for m, n, k in ((130, 520, 400), (2048, 2112, 528)):
        problem = Problem(m, n, k)
        case = cases.signed(m, n, k, seed=seed, device=device)
        (kernel,) = make_kernels([(problem, config_of(problem, tile))], device)
        first = launch(kernel, case, nans(problem, device))
        case.check(first).raise_if_failed(f"{case}, {tile}")
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        for _ in range(500):
            wrong += (launch(kernel, case, nans(problem, device)) != first).any()
        assert int(wrong) == 0, f"{case}, {tile}: {int(wrong)} of 500 launches"
