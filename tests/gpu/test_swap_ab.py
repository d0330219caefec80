"""The small-M kernels under configs of every kind, whatever the model would choose: any legal one must be right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.problem import Problem, Scaling, StoreKind
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.support import (
    BF16,
    E4M3,
    F16,
    F32,
    KINDS,
    Guarded,
    Kind,
    amid_nans,
    launch,
    make_kernels,
    nans,
    poisoned,
)
from tests.swap_ab import SPREAD, k_of_steps

Pair = tuple[Problem, SwapAbConfig]

ROWS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129)
COLUMNS = (1, 7, 8, 16, 127, 128, 129, 576, 2112)
DEPTHS = (16, 112, 128, 144, 256, 7168)
CONFIGS_OF_A_SHAPE = 3

EPILOGUES = (
    *(kind for kind in KINDS if kind.scaling is Scaling.BLOCK),
    Kind(F32, c=F32, bias=F32, in_place=True),
    Kind(F32, c=BF16, bias=BF16),
)
STEPS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 19, 23)
"""Less than the stages, as many and more; one chunk, several, and those with a rest."""
LOOPS = (
    SwapAbConfig(8, 16, 2),
    SwapAbConfig(8, 16, 3, warpgroups_k=2),
    SwapAbConfig(32, 32, 3, split_k=3),
    SwapAbConfig(16, 64, 2, warpgroups_k=2, split_k=2),
    SwapAbConfig(64, 64, 4),
)

every_config = pytest.mark.parametrize("config", SPREAD, ids=lambda config: config.label)


def of_all_sizes(n: int) -> list[Pair]:
    """For each K some of the configs, in rotation, with outputs in rotation."""
    pairs = []
    for i, k in enumerate(DEPTHS):
        first = CONFIGS_OF_A_SHAPE * (len(DEPTHS) * COLUMNS.index(n) + i)
        for j in range(first, first + CONFIGS_OF_A_SHAPE):
            kind = Kind((BF16, F32, F16)[j // 2 % 3])
            pairs.append((kind.problem(ROWS[-1], n, k), SPREAD[j % len(SPREAD)]))
    return pairs


def of_every_epilogue(config: SwapAbConfig) -> list[tuple[Kind, Problem]]:
    """Each with one of the stores, and K of whole blocks or not."""
    found = []
    for i, kind in enumerate(EPILOGUES, SPREAD.index(config)):
        store = list(StoreKind)[i % 2]
        n, k = 584 if store is StoreKind.TMA else 577, (1168, 1280)[i // 2 % 2]
        found.append((kind, kind.problem(77, n, k, store)))
    return found


def of_any_steps(config: SwapAbConfig) -> list[Pair]:
    depths = (k_of_steps(config, steps, full=steps % 2 == 0) for steps in STEPS)
    return [(Kind(F32).problem(33, 136, k), config) for k in depths]


def plain(m: int, n: int, k: int) -> Problem:
    return Kind(F32).problem(m, n, k)


LONG, SHARED, SPECIAL, STRIDED = plain(33, 264, 16384), plain(9, 136, 2560), plain(70, 300, 272), plain(33, 264, 1040)
FAR = Kind(c=BF16).problem(33, 136, 272)


@pytest.fixture(scope="module", autouse=True)
def compiled(device: torch.device, request: pytest.FixtureRequest) -> None:
    """Every kernel of this file, compiled on all processors at once. A mutant's few tests compile what they need."""
    if request.config.getoption("mutant"):
        return
    pairs: list[Pair] = [pair for n in COLUMNS for pair in of_all_sizes(n)]
    pairs += [(problem, config) for config in SPREAD for _, problem in of_every_epilogue(config)]
    pairs += [pair for config in LOOPS for pair in of_any_steps(config)]
    pairs += [(problem, config) for config in SPREAD for problem in (LONG, SHARED, SPECIAL, STRIDED)]
    pairs += [(replace(FAR, store=store), config) for config in SPREAD[::6] for store in StoreKind]
    build_many(list(dict.fromkeys(kernel_request(*pair) for pair in pairs)))


def run(problem: Problem, config: SwapAbConfig, case: Case) -> Tensor:
    """The product under this very config, into an output full of NaN."""
    (kernel,) = make_kernels([(problem, config)], case.a.device)
    return launch(kernel, case, nans(replace(problem, m=case.a.shape[0]), case.a.device))


@pytest.mark.parametrize("n", COLUMNS)
def test_every_m_n_and_k(n, device, seed):
    """The products of most rows are right, and those of fewer have the same bits: a row's depend on nothing else."""
    for k in DEPTHS:
        pairs = [pair for pair in of_all_sizes(n) if pair[0].k == k]
        made = [maker(ROWS[-1], n, k, seed=seed, device=device) for maker in (cases.signed, cases.distinct_scales)]
        for kernel, case in itertools.product(make_kernels(pairs, device), made):
            what = f"{case}, {kernel.problem.output}, {kernel.config.label}"
            whole = launch(kernel, case, nans(kernel.problem, device))
            case.check(whole).raise_if_failed(what)
            for m in ROWS[:-1]:
                part = replace(case, a=case.a[:m], scales_a=case.scales_a[:m])
                out = launch(kernel, part, nans(replace(kernel.problem, m=m), device))
                assert same_bits(out, whole[:m]), f"M = {m} of {what}"


# Outputs that TMA could write, and others; in elements.
LAYOUTS = {
    StoreKind.TMA: [lambda m, n: ((n, 1), 0), lambda m, n: ((n + 8, 1), 8)],
    StoreKind.PREDICATED: [
        lambda m, n: ((n + 3, 1), 1),
        lambda m, n: ((1, m + 5), 0),
        lambda m, n: ((2 * n, 2), 3),
    ],
}


@every_config
def test_every_epilogue(config, device, seed):
    """NaN past the end of every input, canaries around every output and between its rows; C in place too."""
    kinds, problems = zip(*of_every_epilogue(config), strict=True)
    kernels = make_kernels([(problem, config) for problem in problems], device)
    for i, (kind, problem, kernel) in enumerate(zip(kinds, problems, kernels, strict=True)):
        layouts = LAYOUTS[problem.store]
        strides, offset = layouts[i // 2 % len(layouts)](problem.m, problem.n)
        for maker in (cases.signed, cases.small_integers):
            case = poisoned(maker(problem.m, problem.n, problem.k, seed=seed, device=device, **kind.options))
            output = Guarded(problem.m, problem.n, kind.output, device=device, strides=strides, offset=offset)
            c = output.view.copy_(case.c) if kind.in_place else None
            launch(kernel, case, output.view, c=c)
            assert output.is_intact(), f"{case}, {kind}, {config.label}"
            case.check(output.view).raise_if_failed(f"{case}, {kind}, {problem.store}, {config.label}")


@every_config
def test_long_sums_of_other_data(config, device, seed):
    """In FP32, where no rounding of the output hides what a kernel lost."""
    for maker in (cases.positive, cases.heavy_tailed, cases.small_integers):
        case = maker(LONG.m, LONG.n, LONG.k, seed=seed, device=device)
        case.check(run(LONG, config, case)).raise_if_failed(f"{case}, {config.label}")


@pytest.mark.parametrize("config", LOOPS, ids=lambda config: config.label)
def test_any_number_of_steps(config, device, seed):
    for kernel in make_kernels(of_any_steps(config), device):
        m, n, k = kernel.problem.m, kernel.problem.n, kernel.problem.k
        for maker in (cases.distinct_scales, cases.signed):
            case = maker(m, n, k, seed=seed, device=device)
            case.check(launch(kernel, case, nans(kernel.problem, device))).raise_if_failed(f"{case}, {config.label}")


def sums_in_order(case: Case, config: SwapAbConfig) -> Tensor:
    """What a kernel makes of block sums that all are one: FP32 sums of products of scales, first in each share."""
    k = case.a.shape[1]
    products = case.scales_a[:, None, :] * case.scales_b[None, :, :]
    steps = config.steps(k)
    shares = []
    for rank, block in itertools.product(range(config.split_k), range(config.blocks_per_stage)):
        share = torch.zeros_like(products[..., 0])
        first = rank * steps * config.blocks_per_stage + block
        for k_block in range(first, first + steps * config.blocks_per_stage, config.blocks_per_stage):
            if k_block < products.shape[2]:
                share = share + products[..., k_block]
        shares.append(share)
    total = shares[0]
    for share in shares[1:]:
        total = total + share
    return total.repeat_interleave(128, dim=1)[:, : case.b.shape[0]]


@every_config
def test_k_blocks_are_added_in_the_order_that_the_config_says(config, device, generator):
    """Each share's in ascending order; then the shares of CTAs, in each of warpgroups, in each of slices."""
    m, n, k = SHARED.m, SHARED.n, SHARED.k
    one_hot = torch.zeros(max(m, n), k, device=device)
    one_hot[:, ::128] = 1.0
    codes = one_hot.to(E4M3)
    scales_a, scales_b = (torch.randn(rows, k // 128, generator=generator, device=device) for rows in (m, -(-n // 128)))
    case = Case("signed", generator.initial_seed(), codes[:m], scales_a, codes[:n], scales_b)
    assert same_bits(run(SHARED, config, case), sums_in_order(case, config)), f"{case}, {config.label}"


@every_config
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values_stay_in_their_row_or_column(special, config, device, seed):
    """Where K ends inside a step, some shares are of zeros: infinite sums stay so over them."""
    m, n, k = SPECIAL.m, SPECIAL.n, SPECIAL.k
    case = cases.small_integers(m, n, k, seed=seed, device=device)
    clean = run(SPECIAL, config, case)
    case.scales_b[1, 0] = case.scales_a[m - 1, -1] = case.scales_a[m - 2, 1] = special
    case.a[3, k - 1] = math.nan
    case.b[n - 3, 0] = math.nan
    out = run(SPECIAL, config, poisoned(case))
    case.check(out).raise_if_failed(f"{case}, {special}, {config.label}")
    hit = torch.zeros(m, n, dtype=torch.bool, device=device)
    hit[[3, m - 1, m - 2]] = hit[:, 128:256] = hit[:, n - 3 : n - 2] = True
    assert same_bits(out[~hit], clean[~hit]), f"{case}, {special}, {config.label}"


def layouts_of(scales: Tensor) -> Iterator[Tensor]:
    """The same scales with other strides, and NaN wherever there are none."""
    m, k_blocks = scales.shape
    for strides in ((k_blocks, 1), (k_blocks + 3, 1), (1, m + 1), (2, 2 * m + 5), (3 * k_blocks, 3)):
        laid_out = torch.empty_strided(scales.shape, strides, device=scales.device).copy_(scales)
        for before in (0, 1):
            yield amid_nans(laid_out, before=before)


@every_config
def test_scales_of_any_strides(config, device, seed):
    case = cases.signed(STRIDED.m, STRIDED.n, STRIDED.k, seed=seed, device=device)
    expected = run(STRIDED, config, case)
    case.check(expected).raise_if_failed(f"{case}, {config.label}")
    for scales_a in layouts_of(case.scales_a):
        out = run(STRIDED, config, replace(case, scales_a=scales_a))
        assert same_bits(out, expected), f"{case}, strides {scales_a.stride()}, {config.label}"
    first_row = case.scales_a[:1].expand(STRIDED.m, -1)
    of_one_row = [run(STRIDED, config, replace(case, scales_a=scales)) for scales in (first_row, first_row.clone())]
    assert same_bits(*of_one_row), f"{case}, {config.label}"


@pytest.mark.parametrize("config", SPREAD[::6], ids=lambda config: config.label)
def test_rows_so_far_apart_that_offsets_pass_2_to_the_31(config, device, seed):
    """In an output and a C, with either store."""
    m, n = FAR.m, FAR.n
    case = cases.signed(m, n, FAR.k, seed=seed, device=device, c=BF16)
    packed = run(FAR, config, case)
    case.check(packed).raise_if_failed(f"{case}, {config.label}")
    for store, pitch in ((StoreKind.TMA, 2**31 // 30 // 8 * 8), (StoreKind.PREDICATED, 2**31 // 30 // 8 * 8 + 1)):
        (kernel,) = make_kernels([(replace(FAR, store=store), config)], device)
        c, out = (
            torch.empty((m - 1) * pitch + n, dtype=BF16, device=device).as_strided((m, n), (pitch, 1)) for _ in range(2)
        )
        launch(kernel, case, out, c=c.copy_(case.c))
        assert same_bits(out, packed), f"{case}, {store}, {config.label}"
    torch.cuda.empty_cache()
