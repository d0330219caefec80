"""scripts/sanitize_grouped.py: what of the grouped products it runs, and that a wrong result is told."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from itertools import product
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fp8gemm import reference
from fp8gemm.kernels.grouped import GroupedOperands
from fp8gemm.tuning import swap_ab
from fp8gemm.tuning.config import violations
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, StoreKind
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.scripts import load_script


@pytest.fixture(scope="module")
def listed() -> ModuleType:
    """What runs under the tools."""
    return load_script("sanitize_kernels")


def test_the_grouped_kernels_are_all_groupings_and_orientations_and_legal(listed: ModuleType) -> None:
    *products, _ = listed.GROUPED
    problems = [each.problem for each in products]
    assert {(p.grouping, p.store) for p in problems} == set(product(set(Grouping) - {Grouping.NONE}, StoreKind))
    assert {p.output for p in problems} == set(OutputType)
    assert {p.c for p in problems if p.grouping is Grouping.COLUMNS} == {Addend.NONE, Addend.FLOAT32, Addend.IN_PLACE}
    swapped = [each for each in products if isinstance(each.config, SwapAbConfig)]
    assert {each.problem.grouping for each in swapped} == {Grouping.CONTIGUOUS, Grouping.MASKED}
    for each in products:
        problem, config = each.problem, each.config
        if each in swapped:
            assert not swap_ab.violations(config, problem.k), each.label
        else:
            assert not violations(config, problem.store, problem.output, problem.scaling), each.label
    quick = [each for index in listed.QUICK if (each := listed.KERNELS[index]) in listed.GROUPED]
    assert [each.label.split("-")[1] for each in quick] == ["contiguous", "masked", "columns", "ranges"]


def test_a_grouped_product_that_is_not_right_is_told(listed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, by plain products in the kernel's place."""

    class Kernel:
        def __init__(self, problem: GroupedProblem, config: object, **terms: object) -> None:
            self.problem, self.columns = problem, problem.grouping is Grouping.COLUMNS

        def bind(self, given: GroupedOperands, stream: int) -> Callable[[], None]:
            ends = (ctypes.c_int32 * self.problem.groups).from_address(given.ends)
            masked = [group * given.rows for group in range(len(ends))]
            begins = (ctypes.c_int32 * len(ends)).from_address(given.begins) if given.begins else masked
            for group, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                self.multiply(given, group, begin, end if given.begins else begin + end)
            return lambda: None

        def multiply(self, given: GroupedOperands, group: int, begin: int, end: int) -> None:
            rows = slice(begin, end)
            a, scales_a = given.a, given.scales_a
            if self.columns:
                blocks = slice(begin // 128, end // 128)
                terms = a[:, rows], scales_a[:, blocks], given.b[:, rows], given.scales_b[:, blocks]
                out = given.out[group * given.rows : (group + 1) * given.rows]
            else:
                scales_a = scales_a.reshape(-1, scales_a.shape[-1])[rows]
                of_group = slice(group * self.problem.n, (group + 1) * self.problem.n)
                terms, out = (a[rows], scales_a, given.b[of_group], given.scales_b[group]), given.out[rows]
            made = reference.gemm_reference(*terms, out_dtype=torch.float32) if begin < end else torch.zeros(())
            before = out.clone() if self.problem.c is not Addend.NONE else 0
            out.copy_(made * factor + before)
            if spill and not self.columns:
                given.out[end : end + spill] = 0.0

    monkeypatch.setattr(sys.modules["sanitize_grouped"], "GroupedKernel", Kernel)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for factor, spill in ((1.0, 0), (1.1, 0), (1.0, 1)):
        for each in listed.GROUPED[:-1]:
            wrong = factor != 1.0 or (spill and each.problem.grouping is not Grouping.COLUMNS)
            assert (each.run(lambda tensor: tensor) <= each.limit) is not wrong, each.label
