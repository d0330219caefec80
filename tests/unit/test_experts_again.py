"""The second product of experts may read its weights and groups ahead: who says so, and of what it is not true."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8gemm.kernels import grouped, swap_ab
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.nn import Fp8Experts
from fp8gemm.products import grouped_products, operands
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Grouping
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.experts import block
from tests.unit.test_dense_arguments import Driver

G, H, INNER = 4, 256, 128


@pytest.fixture
def experts() -> Fp8Experts:
    return block(G, H, INNER, torch.Generator().manual_seed(3))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[GroupedOperands]:
    """What grouped kernels would be launched with; nothing is computed."""
    found: list[GroupedOperands] = []
    kernel = SimpleNamespace(reads_scales_by_tma=False)
    monkeypatch.setattr(operands, "uses_reference", lambda tensor: False)
    monkeypatch.setattr(grouped_products, "_key", lambda *given, **options: None)
    monkeypatch.setattr(grouped_products, "_kernel", lambda *given, **options: kernel)
    monkeypatch.setattr(grouped_products, "_launch", lambda kernel, of_all: found.append(of_all))
    return found


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_second_product_reads_ahead_what_no_conversion_wrote(
    dtype: torch.dtype, experts: Fp8Experts, launched: list[GroupedOperands]
) -> None:
    x, offsets = torch.randn(6, H).bfloat16(), torch.tensor([0, 1, 1, 4, 6], dtype=dtype)
    experts.forward_sorted(x, offsets)
    experts.forward_sorted(x, torch.stack([offsets[:-1], offsets[1:]]))
    experts.forward_masked(torch.randn(G, 3, H).bfloat16(), torch.tensor([3, 0, 1, 2], dtype=dtype))
    ahead = dtype == torch.int32
    assert [each.static_weights for each in launched] == [False, ahead] * 3


def test_where_calls_are_traced_others_may_come_between_them(
    experts: Fp8Experts, launched: list[GroupedOperands], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fp8gemm.products import grouped as products

    traced: list[Any] = []
    monkeypatch.setattr(products, "goes_to_operator", lambda *given: True)
    monkeypatch.setattr(products, "gemm_grouped", lambda *given, **options: traced.append(options) or given[0])
    monkeypatch.setattr(products, "gemm_masked", lambda *given, **options: traced.append(options) or given[0])
    options = {"out_dtype": torch.bfloat16, "expected_m": 1, "batch_invariant": None}
    of = torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.zeros(1)
    products.gemm_grouped_again(*of, offsets=torch.zeros(5), **options)
    products.gemm_masked_again(*of, torch.zeros(4), **options)
    assert len(traced) == 2 and all(options.items() <= each.items() for each in traced) and launched == []


@pytest.mark.parametrize("programmatic", [True, False])
def test_a_kernel_is_told_if_anything_runs_ahead_of_it(programmatic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    monkeypatch.setattr(grouped, "BoundLaunch", driver.bind)
    monkeypatch.setattr(swap_ab, "encode_column_blocks", driver.encode)
    problem, config = GroupedProblem(Grouping.CONTIGUOUS, G, 1, H, INNER), SwapAbConfig(8, 64, 4)
    kernel = GroupedKernel(problem, config, device_index=0, num_sms=132, programmatic=programmatic)
    a, b = torch.zeros(6, INNER, dtype=torch.uint8), torch.zeros(G * H, INNER, dtype=torch.uint8)
    scales, of_b = torch.ones(1, 8)[:, :6].t(), torch.ones(G, 2, 1)
    for static in (True, False):
        given = GroupedOperands(a, scales, b, of_b, torch.zeros(6, H).bfloat16(), 0, 16, 6, 0, static)
        kernel.bind(given, 0)()
        assert driver.blocks[-1].params.static_weights == (static and programmatic)
        (weights,) = driver.at("tensor_map_b")[-1:]
        assert weights["fetch_bytes"] == 128
