"""Every tile config, not only those that the cost model picks: any legal one must be right for any shape."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.errors import CacheMissError
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.scales import to_mn_major
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.l2 import streamed_rows
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.table import tile_of
from tests import cases
from tests.cases import Case
from tests.gpu.faults.support import Kind, config_of, configs_of, launch, make_kernels, nans, poisoned
from tests.numerics import check

BF16, FP32 = torch.bfloat16, torch.float32

# One tile and less, a tail in every dimension, several tiles per CTA, fewer K blocks than stages and more, odd numbers
# of them and even ones, the last one whole or partial.
SHAPES = {
    StoreKind.TMA: [
        (1, 8, 16),
        (65, 576, 144),
        (190, 584, 3088),
        (300, 2112, 512),
        (777, 1024, 3088),
        (4096, 2112, 256),
    ],
    StoreKind.PREDICATED: [(1, 1, 16), (130, 100, 112), (190, 577, 3088), (300, 2111, 512), (777, 577, 3088)],
}
# Outputs of two and of four bytes are staged in different ways; float16 ones as bfloat16 ones are.
KINDS = (Kind(BF16), Kind(FP32), Kind(BF16, Scaling.ROW), Kind(FP32, Scaling.ROW))
CONFIGS = [
    (kind, store, config)
    for kind in KINDS
    for store in StoreKind
    for config in configs_of(kind.problem(1, 128, 128, store))
]


def wanted(kind: Kind, store: StoreKind, config: TileConfig) -> list[tuple[Problem, TileConfig]]:
    return [(kind.problem(*shape, store), config) for shape in SHAPES[store]]


@pytest.fixture(scope="module")
def compiled(device):
    """Every kernel of `test_every_config_is_right`, compiled on all processors at once."""
    pairs = [pair for choice in CONFIGS for pair in wanted(*choice)]
    build_many([kernel_request(problem, config) for problem, config in pairs])


def run(problem: Problem, config: TileConfig, case: Case, *, num_sms: int = 132) -> torch.Tensor:
    """The product under this very config, into an output full of NaN."""
    (kernel,) = make_kernels([(problem, config)], case.a.device, num_sms=num_sms)
    return launch(kernel, case, nans(problem, case.a.device))


@pytest.mark.parametrize(("kind", "store", "config"), CONFIGS, ids=lambda value: getattr(value, "label", str(value)))
def test_every_config_is_right(kind, store, config, device, seed, compiled):
    for problem, _ in wanted(kind, store, config):
        for maker in (cases.signed, cases.distinct_scales):
            case = maker(problem.m, problem.n, problem.k, seed=seed, device=device, scaling=kind.scaling)
            case.check(run(problem, config, case)).raise_if_failed(case)


# A thread asks for the addends of as many columns at once as it has registers for, which is another number in each tile
# and for each kind. On few SMs, so that C of the next tile is asked for while the one before is stored.
ADDED = (
    Kind(BF16, c=BF16),
    Kind(BF16, c=FP32, bias=BF16),
    Kind(FP32, c=FP32),
    Kind(BF16, bias=FP32),
    Kind(FP32, Scaling.ROW, c=FP32, bias=FP32),
)
ADDED_TILES = [
    (kind, store, tile)
    for kind in ADDED
    for store in StoreKind
    for tile in dict.fromkeys(tile_of(config) for config in configs_of(kind.problem(1, 128, 128, store)))
]


@pytest.fixture(scope="module")
def compiled_with_addends(device):
    """Every kernel of `test_addends_under_every_tile`, compiled on all processors at once."""
    build_many([kernel_request(*with_addends(*choice)) for choice in ADDED_TILES])


def with_addends(kind: Kind, store: StoreKind, tile: str) -> tuple[Problem, TileConfig]:
    problem = kind.problem(300, 1160 if store is StoreKind.TMA else 1157, 400, store)
    return problem, config_of(problem, tile)


@pytest.mark.parametrize(("kind", "store", "tile"), ADDED_TILES, ids=lambda value: getattr(value, "value", str(value)))
def test_addends_under_every_tile(kind, store, tile, device, seed, compiled_with_addends):
    problem, config = with_addends(kind, store, tile)
    for maker in (cases.small_integers, cases.signed):
        case = maker(problem.m, problem.n, problem.k, seed=seed, device=device, **kind.options)
        case.check(run(problem, config, case, num_sms=5)).raise_if_failed(f"{case}, {config}")


# Chunks of K blocks are 1, 2, 4, 6 or 8 long; with two waves in flight there are shorter ones too, at the end, and for
# one warpgroup first. So these are less than a chunk, whole chunks and those with a rest; and more than 32, 64, 96 and
# 128, after which weight scales are of another load, before a chunk or, for the warpgroup that begins with a short one,
# in the middle of one. A multiple of eight is turns of a ring of eight stages, which are chunks then.
K_BLOCKS = (1, 2, 3, 5, 7, 8, 11, 12, 13, 16, 35, 68, 72, 99, 131)
# Every shape of the main loop: two waves in flight or one, of which one or two make a K block. And every kind of border
# between scale blocks: none, between waves, or inside one in steps of 64, 32 or 16 columns. M and N end inside a wave,
# and N is long enough for a tile at each step.
LOOPS = (
    "128x128",
    "128x64",
    "256x64",
    "64x192",
    "128x112",
    "128x256",
    "256x128",
    "128x192",
    "128x160",
    "128x144",
    "192x96",
)
LOOPS_BY_ROWS = ("128x128", "128x64", "64x192", "256x64", "64x192-c1x2", "128x128-c2x1", "128x192-c2x1")
# Where the warpgroups share K, each goes through half of the blocks: these numbers are as many steps as the ones above
# are blocks, and every kind of the last block, which is whole or partial, and the second share's or the first's.
K_BLOCKS_SHARED = (1, 2, 3, 4, 6, 7, 13, 15, 18, 71, 135)
LOOPS_SHARED = ("64x64-k2", "64x96-k2", "64x160-k2")
LOOPS_SHARED_BY_ROWS = ("64x64-k2", "64x96-k2")
M, N = 300, 1160


def kernels_of_k_blocks(tile: str, scaling: Scaling) -> list[tuple[Problem, Config]]:
    """Some with a partial last K block."""
    numbers = K_BLOCKS_SHARED if tile in LOOPS_SHARED else K_BLOCKS
    problems = [Problem(M, N, 128 * blocks - 16 * (blocks % 3), scaling=scaling) for blocks in numbers]
    config = config_of(problems[0], tile if "-c" in tile else f"{tile}-c1x1")
    return [(problem, config) for problem in problems]


def check_any_number_of_k_blocks(tile: str, scaling: Scaling, device: torch.device, seed: int) -> None:
    """On few SMs, so that a CTA goes from tile to tile, and so from border to border."""
    kernels = kernels_of_k_blocks(tile, scaling)
    config = kernels[0][1]
    for kernel in make_kernels(kernels, device, num_sms=5):
        for maker in (cases.distinct_scales, cases.signed):
            case = maker(M, N, kernel.problem.k, seed=seed, device=device, scaling=scaling)
            case.check(launch(kernel, case, nans(kernel.problem, device))).raise_if_failed(f"{case}, {config}")


@pytest.mark.parametrize("tile", [*LOOPS, *LOOPS_SHARED])
def test_any_number_of_k_blocks(tile, device, seed):
    check_any_number_of_k_blocks(tile, Scaling.BLOCK, device, seed)


@pytest.mark.parametrize("tile", [*LOOPS_BY_ROWS, *LOOPS_SHARED_BY_ROWS])
def test_any_number_of_k_blocks_scaled_by_rows(tile, device, seed):
    check_any_number_of_k_blocks(tile, Scaling.ROW, device, seed)


@pytest.mark.parametrize("tile", ["64x64-k2", "64x96-k2"])
@pytest.mark.parametrize("scaling", Scaling, ids=lambda scaling: scaling.value)
def test_nothing_comes_from_past_the_last_k_block(scaling, tile, device, seed):
    """Where K blocks are odd in number, one warpgroup multiplies one of zeros more. Infinite sums stay so over it, and
    what lies past the last scale of a row of B, or was loaded in its place 32 steps before, must not matter."""
    m, n = 70, 300
    for k, special in itertools.product((128, 272, 384, 16400), (math.nan, math.inf, -math.inf)):
        case = cases.small_integers(m, n, k, seed=seed, device=device, scaling=scaling)
        cases.put_special(case, special)
        problem = Problem(m, n, k, OutputType.FLOAT32, scaling=scaling)
        out = run(problem, config_of(problem, f"{tile}-c1x1"), poisoned(case))
        case.check(out).raise_if_failed(f"{case}, {special}")


def test_shares_of_k_are_summed_apart_and_then_added(device):
    """The first takes K blocks 0 and 2, the second 1: which of these partial sums is infinite depends on it."""
    big = 2.0**127
    one_hot = torch.zeros(16, 384, device=device)
    one_hot[:, ::128] = 1.0
    codes = one_hot.to(torch.float8_e4m3fn)
    scales_a = torch.tensor([[big, big, -big], [big, -big, big], [-big, -big, big]], device=device)
    case = Case("exact", 0, codes[:3], to_mn_major(scales_a), codes, torch.ones(1, 3, device=device))
    problem = Problem(3, 16, 384, OutputType.FLOAT32)
    for tile, sums in {"64x64": [math.inf, big, -math.inf], "64x64-k2": [big, math.inf, -big]}.items():
        assert run(problem, config_of(problem, f"{tile}-c1x1"), case)[:, 0].tolist() == sums, tile


def test_a_config_that_shares_k_gives_a_row_the_same_bits_whatever_is_beside_it(device, seed):
    """And in every run: the order of its sums is another than that of other configs, but its own is fixed."""
    case = cases.signed(333, 584, 3088, seed=seed, device=device)
    problem = Problem(333, 584, 3088, OutputType.FLOAT32)
    for tile in LOOPS_SHARED:
        config = config_of(problem, f"{tile}-c1x1")
        whole = run(problem, config, case)
        case.check(whole).raise_if_failed(f"{case}, {config}")
        for rows in (slice(0, 333), slice(0, 1), slice(0, 65), slice(64, 128), slice(204, 333)):
            part = replace(case, a=case.a[rows], scales_a=to_mn_major(case.scales_a[rows]))
            out = run(replace(problem, m=len(part.a)), config, part)
            assert torch.equal(out, whole[rows]), f"{case}, {rows}, {config}"


@pytest.mark.parametrize("tile", ["64x64", "64x128", "64x64-k2", "128x128", "128x192", "192x96"])
def test_a_weight_that_leaves_l2_first_is_the_same(tile, device, seed):
    """On few SMs, with all rows of a tile and without, and with the last columns missing."""
    problem = Problem(300, 1160, 4112)
    config = config_of(problem, f"{tile}-c1x1")
    assert streamed_rows(problem, config) == 255
    case = cases.distinct_scales(300, 1160, 4112, seed=seed, device=device)
    whole = run(problem, config, case, num_sms=5)
    case.check(whole).raise_if_failed(f"{case}, {config}")
    for rows in (1, 64, 193, 255, 256):
        part = replace(case, a=case.a[:rows], scales_a=to_mn_major(case.scales_a[:rows]))
        assert torch.equal(run(replace(problem, m=rows), config, part, num_sms=5), whole[:rows]), f"{rows}, {config}"


SOME_TILES = ("256x128-c1x1", "128x112-c1x1", "256x64-c2x1", "64x64-c1x2", "64x64-k2-c2x1", "64x96-k2-c1x2")


@pytest.mark.parametrize("num_sms", [1, 2, 7, 131])
@pytest.mark.parametrize("tile", SOME_TILES)
def test_any_number_of_sms_gives_the_same_bits(tile, num_sms, device, seed):
    problem = Problem(777, 2112, 1040)
    config = config_of(problem, tile)
    case = cases.signed(777, 2112, 1040, seed=seed, device=device)
    whole = run(problem, config, case)
    case.check(whole).raise_if_failed(case)
    assert torch.equal(run(problem, config, case, num_sms=num_sms), whole)


@pytest.mark.parametrize("num_sms", [1, 3])
def test_the_setting_for_sms_is_obeyed(num_sms, device, seed):
    case = cases.signed(300, 576, 512, seed=seed, device=device)
    with settings.scope(num_sms=num_sms):
        plan = fp8gemm.plan(case.b, case.scales_b, max_m=512)
        kernel = plan.kernel_for(300)
        assert kernel is not None and kernel.grid(300) <= num_sms
        case.check(plan(case.a, case.scales_a)).raise_if_failed(case)


def test_a_missing_kernel_under_each_policy(device, seed, tmp_path):
    case = cases.signed(2048, 2120, 272, seed=seed, device=device)
    with settings.scope(cache_dirs=(tmp_path,), jit="error"), pytest.raises(CacheMissError, match="n2120-k272"):
        fp8gemm.gemm(*case.operands)
    with settings.scope(cache_dirs=(tmp_path,), jit="nearest"), pytest.raises(CacheMissError):
        fp8gemm.gemm(*case.operands)
    with settings.scope(cache_dirs=(tmp_path,), jit="compile"):
        fp8gemm.gemm(*case.operands)
    # Another M wants another kernel; the one that is ready serves it.
    small = cases.signed(1, 2120, 272, seed=seed, device=device)
    assert fp8gemm.select(1, 2120, 272) != fp8gemm.select(2048, 2120, 272)
    with settings.scope(cache_dirs=(tmp_path,), jit="nearest"):
        small.check(fp8gemm.gemm(*small.operands)).raise_if_failed(small)
    with settings.scope(cache_dirs=(tmp_path,), jit="error"), pytest.raises(CacheMissError):
        fp8gemm.gemm(*small.operands)


def test_a_capture_takes_the_nearest_loaded_kernel_or_says_why_not(device, seed, tmp_path):
    warm = cases.signed(2048, 2184, 272, seed=seed, device=device)
    cold = cases.signed(1, 2184, 272, seed=seed, device=device)
    assert fp8gemm.select(1, 2184, 272) != fp8gemm.select(2048, 2184, 272)
    with settings.scope(cache_dirs=(tmp_path,)):
        fp8gemm.gemm(*warm.operands)
        out = torch.full((1, 2184), math.nan, dtype=torch.bfloat16, device=device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            with pytest.raises(CacheMissError, match="captured"):
                fp8gemm.gemm(*cold.operands, out=out)
            with settings.scope(jit="nearest"):
                fp8gemm.gemm(*cold.operands, out=out)
        graph.replay()
        cold.check(out).raise_if_failed(cold)


@pytest.mark.parametrize("n", [100, 104])
def test_a_plan_has_loaded_the_kernels_of_every_m(n, device, seed):
    weight = cases.signed(1, n, 272, seed=seed, device=device)
    plan = fp8gemm.plan(weight.b, weight.scales_b, max_m=700)
    for m in (1, 2, 64, 65, 700):
        activation = cases.signed(m, n, 272, seed=seed + m, device=device)
        outputs = []
        graph = torch.cuda.CUDAGraph()
        # Under a capture nothing can be loaded, so a kernel that the plan forgot would be an error.
        with settings.scope(jit="error"), torch.cuda.graph(graph):
            outputs.append(plan(activation.a, activation.scales_a))
        graph.replay()
        operands = (activation.a, activation.scales_a, weight.b, weight.scales_b)
        assert torch.equal(outputs[0], fp8gemm.gemm(*operands))
        check(outputs[0], *operands).raise_if_failed(f"N = {n}, M = {m}")
