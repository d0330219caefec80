"""What a small-M kernel is launched with: its maps, its other arguments, and which calls share a block of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.kernels import gemm, swap_ab
from fp8gemm.kernels.catalogue import load_kernel
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.kernels.swap_ab import SwapAbKernel
from fp8gemm.tuning.problem import Addend, OutputType, Problem
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests import cases
from tests.cases import Case
from tests.swap_ab import SPREAD
from tests.unit.test_dense_arguments import CONFIGS, Driver

M, N = 33, 136
CONFIG = SwapAbConfig(16, 32, 2, warpgroups_k=2, split_k=3)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(monkeypatch)
    monkeypatch.setattr(swap_ab, "encode_column_blocks", driver.encode)
    return driver


def load(k: int, config: SwapAbConfig = CONFIG, *, programmatic: bool = True, **terms: Addend) -> SwapAbKernel:
    problem = Problem(M, N, k, OutputType.FLOAT32, **terms)
    return SwapAbKernel(problem, config, device_index=0, num_sms=132, programmatic=programmatic)


def call(kernel: SwapAbKernel, case: Case, out: Tensor, **options: Any) -> None:
    kernel(*case.operands, **case.epilogue, out=out, stream=0, **options)


def test_the_config_says_which_family_a_kernel_is_of(driver: Driver) -> None:
    for config, family, by_tma in ((CONFIGS[0], DenseKernel, True), (CONFIG, SwapAbKernel, False)):
        kernel = load_kernel(Problem(M, N, 256), config, device_index=0, num_sms=132)
        assert type(kernel) is family and kernel.config is config and kernel.reads_scales_by_tma is by_tma


@pytest.mark.parametrize("config", SPREAD, ids=lambda config: config.label)
def test_whole_blocks_come_a_stage_at_a_time_and_others_one_by_one(config: SwapAbConfig, driver: Driver) -> None:
    out = torch.empty(M, N)
    for k in (16, 144, 1168, 128, 1280):
        case = cases.signed(M, N, k, seed=0)
        call(load(k, config), case, out)
        for place, codes, rows in (("a", case.a, config.block_m), ("b", case.b, config.block_n)):
            (found,) = driver.at(f"tensor_map_{place}")
            assert (found["address"], found["dtype"], found["swizzle"]) == (codes.data_ptr(), "uint8", "128B")
            if k % 128:
                assert (found["inner"], found["outer"], found["outer_stride_bytes"]) == (k, len(codes), k)
                assert (found["box_inner"], found["box_outer"]) == (128, rows)
            else:
                assert (found["columns"], found["rows"], found["row_stride_bytes"]) == (k, len(codes), k)
                box = found["block_columns"], found["box_rows"], found["box_blocks"]
                assert box == (128, rows, config.blocks_per_stage)
        driver.maps.clear()


@pytest.mark.parametrize("config", SPREAD, ids=lambda config: config.label)
def test_a_grid_is_a_cluster_for_each_tile(config: SwapAbConfig, driver: Driver) -> None:
    for m in (1, 8, 9, 64, 65, 300):
        tiles = -(-m // config.block_m) * -(-N // config.block_n)
        assert load(256, config).grid(m) == tiles * config.split_k


def test_every_argument_reaches_its_place(driver: Driver) -> None:
    case = cases.signed(M, N, 272, seed=0, c=torch.bfloat16, bias=torch.float32)
    kernel = load(272, c=Addend.BFLOAT16, bias=Addend.FLOAT32)
    out = torch.empty(N, M).t()
    for scales_a in (case.scales_a, case.scales_a.contiguous(), torch.empty(2 * M, 9)[::2, ::3]):
        for static in (False, True):
            kernel(case.a, scales_a, case.b, case.scales_b, out=out, stream=0, static_weights=static, **case.epilogue)
            params = driver.blocks[-1].params
            assert (params.scales_a_stride_m, params.scales_a_stride_k) == scales_a.stride()
            assert (params.scales_a, params.scales_b) == (scales_a.data_ptr(), case.scales_b.data_ptr())
            assert (params.d, params.d_stride_m, params.d_stride_n) == (out.data_ptr(), 1, M)
            assert case.c is not None and (params.c, params.c_stride_m, params.c_stride_n) == (case.c.data_ptr(), N, 1)
            assert case.bias is not None and params.bias == case.bias.data_ptr()
            assert (params.m, params.static_weights) == (M, int(static))
    assert len(set(map(id, driver.blocks))) == 6


def test_a_static_weight_is_for_programmatic_launches_alone(driver: Driver) -> None:
    case = cases.signed(M, N, 256, seed=0)
    for programmatic in (False, True):
        call(load(256, programmatic=programmatic), case, torch.empty(M, N), static_weights=True)
    assert [block.params.static_weights for block in driver.blocks] == [0, 1]


def test_a_weight_is_not_read_ahead_where_the_product_is_faster_behind(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, asked = cases.signed(M, N, 256, seed=0), list[tuple[object, ...]]()
    for ahead in (True, False):
        monkeypatch.setattr(gemm, "starts_ahead", lambda *sizes, ahead=ahead: asked.append(sizes) or ahead)
        call(load(256), case, torch.empty(M, N), static_weights=True)
    assert [block.params.static_weights for block in driver.blocks] == [1, 0]
    assert asked == [(M, N, 256, CONFIG, 132)] * 2


@pytest.mark.parametrize("k", [144, 1280])
def test_of_a_weight_that_one_cta_alone_reads_l2_fetches_what_is_asked_for(k: int, driver: Driver) -> None:
    """And of one that is read twice, or in parts by several, the line beside it too, as of tokens."""
    for config, m, fetched in (
        (SwapAbConfig(16, 32, 2), 16, 128),
        (SwapAbConfig(16, 32, 2), 17, 256),
        (SwapAbConfig(16, 32, 2, split_k=2), 9, 256),
    ):
        call(load(k, config), cases.signed(m, N, k, seed=0), torch.empty(m, N))
        (weights,), (tokens,) = driver.at("tensor_map_b"), driver.at("tensor_map_a")
        assert (weights["fetch_bytes"], tokens["fetch_bytes"]) == (fetched, 256), (config.label, m)
        driver.maps.clear()
