"""Every tile config, not only those that the cost model picks: any legal one must be right for any shape."""

from __future__ import annotations

import math

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.dense import DenseKernel
from fp8gemm.errors import CacheMissError
from fp8gemm.tuning.config import TileConfig, candidate_configs
from fp8gemm.tuning.problem import Problem, StoreKind
from tests import cases
from tests.cases import Case
from tests.numerics import check

# One tile and less, a tail in every dimension, several tiles per CTA, fewer K blocks than stages and more.
SHAPES = {
    StoreKind.TMA: [(1, 8, 16), (65, 576, 144), (300, 2112, 512), (777, 1024, 3216), (4096, 2112, 256)],
    StoreKind.PREDICATED: [(1, 1, 16), (130, 100, 112), (300, 2111, 512), (777, 577, 3216)],
}
CONFIGS = [(store, config) for store in StoreKind for config in candidate_configs(store)]


def run(config: TileConfig, store: StoreKind, case: Case, *, num_sms: int) -> torch.Tensor:
    """The product under this very config, into an output full of NaN."""
    (m, k), n = case.a.shape, case.b.shape[0]
    device = case.a.device
    out = torch.full((m, n), math.nan, dtype=torch.bfloat16, device=device)
    kernel = DenseKernel(Problem(m, n, k, store=store), config, device_index=device.index, num_sms=num_sms)
    kernel(*case.operands, out=out, stream=torch.cuda.current_stream(device).cuda_stream)
    return out


@pytest.mark.parametrize(("store", "config"), CONFIGS, ids=lambda value: getattr(value, "label", str(value)))
def test_every_config_is_right(store, config, device, seed):
    for shape in SHAPES[store]:
        for maker in (cases.signed, cases.distinct_scales):
            case = maker(*shape, seed=seed, device=device)
            case.check(run(config, store, case, num_sms=132)).raise_if_failed(case)


@pytest.mark.parametrize("num_sms", [1, 2, 7, 131])
@pytest.mark.parametrize("label", ["256x128-s3-c1x1", "256x128-s3-c2x1", "64x64-s8-c1x2"])
def test_any_number_of_sms_gives_the_same_bits(label, num_sms, device, seed):
    config = next(config for config in candidate_configs(StoreKind.TMA) if config.label == label)
    case = cases.signed(777, 2112, 1040, seed=seed, device=device)
    whole = run(config, StoreKind.TMA, case, num_sms=132)
    case.check(whole).raise_if_failed(case)
    assert torch.equal(run(config, StoreKind.TMA, case, num_sms=num_sms), whole)


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
