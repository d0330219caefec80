"""Every tile config, not only those that the cost model picks: any legal one must be right for any shape."""

from __future__ import annotations

import math

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.errors import CacheMissError
from fp8gemm.families.dense import kernel_request
from fp8gemm.jit.build import build_many
from fp8gemm.tuning.config import TileConfig, candidate_configs
from fp8gemm.tuning.problem import Problem, Scaling, StoreKind
from tests import cases
from tests.cases import Case
from tests.gpu.faults.support import Kind, configs_of, launch, make_kernels, nans
from tests.numerics import check

BF16, FP32 = torch.bfloat16, torch.float32

# One tile and less, a tail in every dimension, several tiles per CTA, fewer K blocks than stages and more.
SHAPES = {
    StoreKind.TMA: [(1, 8, 16), (65, 576, 144), (300, 2112, 512), (777, 1024, 3216), (4096, 2112, 256)],
    StoreKind.PREDICATED: [(1, 1, 16), (130, 100, 112), (300, 2111, 512), (777, 577, 3216)],
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


@pytest.mark.parametrize("num_sms", [1, 2, 7, 131])
@pytest.mark.parametrize("label", ["256x128-s3-c1x1", "256x128-s3-c2x1", "64x64-s8-c1x2"])
def test_any_number_of_sms_gives_the_same_bits(label, num_sms, device, seed):
    config = next(config for config in candidate_configs(StoreKind.TMA) if config.label == label)
    case = cases.signed(777, 2112, 1040, seed=seed, device=device)
    problem = Problem(777, 2112, 1040)
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
