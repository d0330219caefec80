"""scripts/sanitize_kernels.py: what it runs of single products and quantisers, and that a wrong result is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm import reference
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.kernels.quantize import ROWS_OF_WARP, WARPS_OF_BLOCK, Quantizer
from fp8gemm.tuning import swap_ab
from fp8gemm.tuning.config import violations
from fp8gemm.tuning.problem import Addend, OutputType, Scaling, StoreKind
from tests.problems import TERMS
from tests.scripts import load_script


@pytest.fixture(scope="module")
def listed() -> ModuleType:
    """What runs under the tools."""
    return load_script("sanitize_kernels")


def test_the_dense_kernels_are_all_outputs_and_stores_and_legal(listed: ModuleType) -> None:
    everything = {(s, o, st) for s in Scaling for o in OutputType for st in StoreKind}
    kernels = listed.DENSE
    quick = [kernels[index] for index in listed.QUICK if index < len(kernels)]
    for chosen, wanted in ((kernels, everything), (quick, None)):
        problems = [kernel.problem for kernel in chosen]
        combined = {(problem.scaling, problem.output, problem.store) for problem in problems}
        assert wanted is None or combined == wanted
        for position, values in enumerate((Scaling, OutputType, StoreKind)):
            assert {each[position] for each in combined} == set(values)
        assert {kernel.config.cluster_size for kernel in chosen} == {1, 2}
        assert {(problem.c is Addend.NONE) for problem in problems} == {True, False}
    assert {kernel.problem.c for kernel in kernels} == set(Addend)
    assert {kernel.problem.bias for kernel in kernels} == set(TERMS)
    assert {(kernel.config.cluster_m, kernel.config.cluster_n) for kernel in kernels} == {(1, 1), (2, 1), (1, 2)}
    for kernel in kernels:
        problem = kernel.problem
        assert not violations(kernel.config, problem.store, problem.output, problem.scaling), kernel.label
    # The planted fault is in scales that are read by ordinary loads.
    assert kernels[0].problem.scaling is Scaling.BLOCK


def test_the_small_m_kernels_are_all_outputs_and_stores_and_legal(listed: ModuleType) -> None:
    kernels = listed.PRODUCTS[len(listed.DENSE) :]
    problems = [kernel.problem for kernel in kernels]
    assert {(problem.output, problem.store) for problem in problems} == {(o, s) for o in OutputType for s in StoreKind}
    assert {problem.c for problem in problems} == {problem.bias for problem in problems} == set(TERMS)
    assert {kernel.config.slices for kernel in kernels} == {1, 2, 4}
    assert {kernel.config.warpgroups_k for kernel in kernels} == {1, 2}
    for kernel in kernels:
        k = kernel.problem.k
        assert not swap_ab.violations(kernel.config, k), kernel.label
    assert {kernel.problem.k % 128 == 0 for kernel in kernels} == {True, False}
    assert any(kernel.config.steps(kernel.problem.k) > kernel.config.stages for kernel in kernels)
    quick = [listed.KERNELS[index] for index in listed.QUICK if len(listed.DENSE) <= index < len(listed.PRODUCTS)]
    assert [kernel.config.split_k > 1 for kernel in quick] == [False, True]


def test_no_kernel_is_examined_twice(listed: ModuleType) -> None:
    assert len({(kernel.label, kernel.shape) for kernel in listed.KERNELS}) == len(listed.KERNELS)
    assert len(set(listed.QUICK)) == len(listed.QUICK)


def test_the_quantisers_are_all_kinds_and_dtypes_with_tails(listed: ModuleType) -> None:
    quick = [each for index in listed.QUICK if (each := listed.KERNELS[index]) in listed.QUANTISINGS]
    kinds = {"plain", "silu-mul", "blocks", "with-transpose", "norm", "add-norm"}
    masked = {"masked-plain", "masked-silu-mul"}
    assert {each.kind for each in listed.QUANTISINGS} == kinds | masked
    assert {each.kind for each in quick} == kinds - {"norm"}
    assert {each.dtype for each in listed.QUANTISINGS} == set(INPUTS)
    configs = [dict(each.request.config) for each in listed.QUANTISINGS]
    assert {config["rows"] for config in configs if "rows" in config} == set(ROWS_OF_WARP)
    assert {config["warps"] for config in configs if "rows" not in config and "warps" in config} == set(WARPS_OF_BLOCK)
    assert {config["residual"] for config in configs if "residual" in config} == {False, True}
    for each in listed.QUANTISINGS:
        assert each.k % 128 and each.m % 4, each.label


def test_a_quantiser_that_is_not_right_is_told(listed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, by the reference in the kernel's place."""

    class Kernel:
        def __init__(self, quantizer: Quantizer, *, device_index: int) -> None:
            self.label = quantizer.request.label

        def bind(self, x: Tensor, codes: Tensor, scales: Tensor, **terms: Any) -> Callable[[], None]:
            if "silu" in self.label:
                x = reference.silu_mul(x)
            elif "norm" in self.label:
                added = x + terms["residual"] if "residual" in terms else x
                x = reference.rms_norm(added, terms["weight"], terms["eps"])
            made = (reference.quantize_blocks if "blocks" in self.label else reference.quantize_rows)(x)
            codes.copy_(made[0])
            scales.copy_(made[1] * factor)
            if "transpose" in terms:
                of_transpose, their_scales = terms["transpose"]
                made = reference.quantize_with_transpose(x)
                of_transpose.copy_(made[2])
                their_scales.copy_(made[3] * factor)
            return lambda: None

        def bind_masked(
            self, x: Tensor, codes: Tensor, scales: Tensor, counts: Tensor, **terms: Any
        ) -> Callable[[], None]:
            for group, count in enumerate(counts.tolist()):
                self.bind(x[group, :count], codes[group, :count], scales[group, :count], **terms)
            return lambda: None

    monkeypatch.setattr(sys.modules["sanitize_quantizers"], "QuantizeKernel", Kernel)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for factor in (1.0, 1.1):
        for each in listed.QUANTISINGS:
            assert (each.run(lambda tensor: tensor) <= each.limit) is (factor == 1.0), each.label
