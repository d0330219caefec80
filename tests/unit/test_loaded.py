"""From `gemm` and plans to kernels: which are asked for, bound and launched, and with what.

A GPU is played by `Gpu`: problems, choices and bindings are real, and a kernel is the reference with a memory.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.kernels import loaded, nearest
from fp8gemm.products import dense, operands, plans
from fp8gemm.reference import gemm_reference
from fp8gemm.scales import is_mn_major
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import (
    Config,
    config_by_m,
    eligible_configs,
    ranked_configs,
)
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.table import NO_TABLES, Entry, Table, tile_of, write_table
from tests import cases
from tests.calls import Call, both, same_bits

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M, N, K = 33, 136, 272  # tails everywhere: two N blocks, three K blocks


@pytest.fixture
def case() -> cases.Case:
    return cases.signed(M, N, K, seed=cases.fresh_seed())


class Kernel:
    """What a `GemmKernel` is to its callers, computed by the reference."""

    def __init__(self, problem: Problem, config: Config, **options: Any) -> None:
        self.problem, self.config, self.options = problem, config, options
        self.reads_scales_by_tma = isinstance(config, TileConfig)
        self.calls: list[dict[str, Any]] = []

    def bind(self, *args: Any, **others: Any) -> Callable[[], None]:
        return lambda: self(*args, **others)

    def __call__(self, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, **others: Any) -> None:
        self.calls.append({"scales_a": scales_a, "scales_b": scales_b, **others})
        out = others["out"]
        out.copy_(gemm_reference(a, scales_a, b, scales_b, c=others["c"], bias=others["bias"], out_dtype=out.dtype))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a kernel belongs to its process")


class Gpu:
    """A GPU that CPU tensors are taken to be on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: list[Kernel] = []
        self.built: list[str] = []
        monkeypatch.setattr(operands, "uses_reference", lambda tensor: False)
        for module in (dense, plans):
            monkeypatch.setattr(module, "device_chip", lambda index: named_chip("h200"))
        monkeypatch.setattr(plans, "build_many", lambda requests: self.built.extend(r.label for r in requests))
        monkeypatch.setattr(loaded, "_kernels", {})
        monkeypatch.setattr(loaded, "load_kernel", self.load)
        monkeypatch.setattr(dense, "on_device", lambda index: nullcontext())
        monkeypatch.setattr(dense, "current_stream", lambda index: 17)

    def load(self, problem: Problem, config: Config, **options: Any) -> Kernel:
        self.kernels.append(Kernel(problem, config, **options))
        return self.kernels[-1]

    def last(self) -> Kernel:
        return self.kernels[-1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


@pytest.mark.parametrize("scaling", Scaling)
@pytest.mark.parametrize("n", [N, N - 3])
def test_everything_that_names_a_kernel_reaches_it(scaling: Scaling, n: int, gpu: Gpu) -> None:
    store = StoreKind.TMA if n == N else StoreKind.PREDICATED
    terms = ((None, None), (BF16, FP32), (FP32, BF16), (None, BF16), (FP32, None))
    for c, bias in terms:
        case = cases.signed(M, n, K, seed=cases.fresh_seed(), scaling=scaling, c=c, bias=bias)
        for dtype, output in ((BF16, "bfloat16"), (FP16, "float16"), (FP32, "float32")):
            out = fp8gemm.gemm(*case.operands, **case.epilogue, out_dtype=dtype)
            assert same_bits(out, gemm_reference(*case.operands, **case.epilogue, out_dtype=dtype)), case
            types = (Addend.NONE if term is None else Addend(str(term).removeprefix("torch.")) for term in (c, bias))
            problem = Problem(M, n, K, OutputType(output), store, scaling, *types)
            assert (gpu.last().problem, gpu.last().config) == (problem, ranked_configs(problem, named_chip("h200"))[0])
            assert gpu.last().calls[0]["stream"] == 17
    kernels = len(gpu.kernels)
    assert kernels == 3 * len(terms)
    fp8gemm.gemm(*case.operands, **case.epilogue, out_dtype=dtype)
    assert len(gpu.kernels) == kernels and len(gpu.last().calls) == 2, "the same again is the same kernel"


@both
@pytest.mark.parametrize("argument", [None, False, True])
@pytest.mark.parametrize("setting", [False, True])
def test_batch_invariance_is_the_argument_or_the_setting(
    call: Call, argument: bool | None, setting: bool, case: cases.Case, gpu: Gpu
) -> None:
    with settings.scope(batch_invariant=setting):
        call(*case.operands, batch_invariant=argument)
    assert gpu.last().problem.batch_invariant is (setting if argument is None else argument)


def test_a_plan_stays_batch_invariant(case: cases.Case, gpu: Gpu) -> None:
    with settings.scope(batch_invariant=True):
        plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    assert plan.batch_invariant is True and copy.deepcopy(plan).batch_invariant is True


def test_why_a_config_was_chosen_does_not_name_a_kernel(gpu: Gpu) -> None:
    chip = named_chip("h200")
    found = loaded.kernel_for(Problem(M, N, K), chip, 0)
    best = Problem(M, N, K, batch_invariant=True)
    again = loaded.kernel_for(best, chip, 0)
    assert (found is again) == (found.config == ranked_configs(best, chip)[0])
    assert loaded.kernel_for(Problem(M - 1, N, K), chip, 0) is found
    assert loaded.kernel_for(Problem(M, N, K), chip, 1) is not found


def test_a_tuned_table_decides_where_it_is_in_force(case: cases.Case, gpu: Gpu, tmp_path: Path) -> None:
    model = eligible_configs(Problem(M, N, K), named_chip("h200"), NO_TABLES)
    entry = Entry(M, N, K, tile_of(model[-1]), 1.0)
    write_table(tmp_path / "table.json", Table("NVIDIA H200", "h200", 132, "2026-01-01", "by hand", (entry,)))
    for tables, expected in (((), model[0]), ((tmp_path / "table.json",), model[-1]), ((), model[0])):
        with settings.scope(tables=tables):
            fp8gemm.gemm(*case.operands)
            plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
        assert plan.kernel_for(M) is next(kernel for kernel in gpu.kernels if kernel.config == expected)
    assert [kernel.config for kernel in gpu.kernels if kernel.calls] == [model[0], model[-1]]


@pytest.mark.parametrize("policy", ["compile", "error"])
def test_a_kernel_may_be_compiled_under_one_policy_alone(policy: str, case: cases.Case, gpu: Gpu) -> None:
    with settings.scope(jit=policy):
        fp8gemm.plan(case.b, case.scales_b, max_m=M)
    assert gpu.last().options["allow_compile"] is (policy == "compile")
    assert bool(gpu.built) is (policy == "compile")


def test_under_nearest_the_best_that_is_ready_is_taken(
    case: cases.Case, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked = ranked_configs(Problem(M, N, K), named_chip("h200"))
    ready = {ranked[2].label, ranked[3].label}
    monkeypatch.setattr(nearest, "_looks", {})
    monkeypatch.setattr(nearest, "is_ready", lambda request: any(f"-{label}-" in request.label for label in ready))
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with settings.scope(jit="nearest"):
        for _ in range(2):
            fp8gemm.gemm(*case.operands)
    assert [kernel.config for kernel in gpu.kernels] == [ranked[2]] and len(gpu.last().calls) == 2


@pytest.mark.parametrize(("dtype", "c"), [(BF16, FP32), (FP32, FP32), (FP16, BF16)])
def test_a_call_with_a_packed_c_uses_what_the_plan_bound(dtype: torch.dtype, c: torch.dtype, gpu: Gpu) -> None:
    case = cases.signed(300, N, K, seed=cases.fresh_seed(), c=c, bias=FP32)
    assert case.c is not None
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=300, bias=case.bias, out_dtype=dtype, c_dtype=c)
    bound = list(gpu.kernels)
    steps = config_by_m(bound[-1].problem, named_chip("h200"))
    assert [kernel.config for kernel in bound] == list(dict.fromkeys(config for _, config in steps))
    for m in (1, 64, 300):
        out = plan(case.a[:m], case.scales_a[:m], c=case.c[:m])
        in_place = plan(case.a[:m], case.scales_a[:m], c=case.c[:m], out=case.c[:m].clone()) if c is dtype else out
        assert same_bits(out, in_place)
        assert plan.kernel_for(m).calls[-1]["c"].shape == (m, N)
    assert gpu.kernels == bound and bound[-1].problem.store is StoreKind.TMA
    strided = torch.cat([case.c, case.c], dim=1)[:, 1 : N + 1].copy_(case.c)
    assert same_bits(plan(case.a, case.scales_a, c=strided), plan(case.a, case.scales_a, c=case.c)), case
    assert len(gpu.kernels) == len(bound) + 1 and gpu.last().problem.store is StoreKind.PREDICATED


@both
def test_row_scales_reach_the_kernel_as_tma_reads_them(call: Call, gpu: Gpu) -> None:
    case = cases.signed(M, N, K, seed=cases.fresh_seed(), scaling=Scaling.ROW)
    for scales_b in (case.scales_b, case.scales_b.contiguous()):
        out = call(case.a, case.scales_a, case.b, scales_b)
        passed = gpu.last().calls[-1]["scales_b"]
        assert is_mn_major(passed) and (passed is scales_b) == is_mn_major(scales_b)
        assert same_bits(out, gemm_reference(*case.operands)), case


def test_a_copy_of_a_plan_has_the_kernels_of_this_process(case: cases.Case, gpu: Gpu) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    for twin in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert twin.kernel_for(M) is plan.kernel_for(M) is gpu.last()


def test_no_rows_are_launched(case: cases.Case, gpu: Gpu) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    nothing = case.a[:0], case.scales_a[:0]
    assert plan(*nothing).shape == fp8gemm.gemm(*nothing, case.b, case.scales_b).shape == (0, N)
    assert not any(kernel.calls for kernel in gpu.kernels)


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_a_static_weight_and_programmatic_launch_reach_the_kernel(
    static: bool, pdl: bool, case: cases.Case, gpu: Gpu
) -> None:
    """A plan's, with its own store and with another; what `gemm` multiplies may have been written just before."""
    with settings.scope(pdl=pdl):
        plan = fp8gemm.plan(case.b, case.scales_b, max_m=M, static_weights=static)
        strided = torch.empty(M, 2 * N, dtype=BF16)[:, ::2]
        for out in (None, strided):
            assert same_bits(plan(case.a, case.scales_a, out=out), gemm_reference(*case.operands))
        fp8gemm.gemm(*case.operands)
    calls = [call for kernel in gpu.kernels for call in kernel.calls]
    assert sorted(call["static_weights"] for call in calls) == sorted([static, static, False])
    assert all(kernel.options["programmatic"] is pdl for kernel in gpu.kernels)


def test_launches_of_either_kind_are_kernels_of_their_own(case: cases.Case, gpu: Gpu) -> None:
    for pdl in (False, True, False):
        with settings.scope(pdl=pdl):
            fp8gemm.gemm(*case.operands)
    assert [kernel.options["programmatic"] for kernel in gpu.kernels] == [False, True]


def test_a_plan_stays_static(case: cases.Case, gpu: Gpu) -> None:
    for static in (False, True):
        plan = fp8gemm.plan(case.b, case.scales_b, max_m=M, static_weights=static)
        for twin in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
            assert twin.static_weights is plan.static_weights is static


def test_scales_of_any_strides_reach_a_kernel_that_reads_them_itself(gpu: Gpu) -> None:
    case = cases.signed(M, N, K, seed=cases.fresh_seed())
    out = torch.empty(M, N, dtype=BF16)
    for config, as_they_are in ((SwapAbConfig(8, 16, 2), True), (next(candidate_configs(StoreKind.TMA)), False)):
        kernel = gpu.load(Problem(M, N, K), config)
        scales_a = case.scales_a.contiguous()
        dense.launch(kernel, case.a, scales_a, case.b, case.scales_b, out=out, c=None, bias=None)
        passed = kernel.calls[-1]["scales_a"]
        assert (passed is scales_a) is as_they_are and same_bits(passed, scales_a)
