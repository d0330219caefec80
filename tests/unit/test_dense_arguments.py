"""What a dense kernel is launched with: the boxes of A and B that its argument block describes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.kernels import dense
from fp8gemm.kernels import gemm as kernel
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Problem, StoreKind
from tests import cases

N, K = 136, 272
CONFIGS = list(candidate_configs(StoreKind.TMA))


class Driver:
    """Stands where the GPU and its driver are, and keeps the maps that are encoded and the blocks that are launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.maps: list[dict[str, Any]] = []
        self.blocks: list[ArgumentBlock] = []
        loaded = SimpleNamespace(function=0)
        monkeypatch.setattr(kernel, "load", lambda *arguments, **options: loaded)
        monkeypatch.setattr(kernel, "LaunchConfig", SimpleNamespace)
        monkeypatch.setattr(kernel, "ensure_context", lambda index: None)
        monkeypatch.setattr(kernel, "max_active_clusters", lambda config: 132)
        monkeypatch.setattr(kernel, "BoundLaunch", self.bind)
        for module in (kernel, dense):
            monkeypatch.setattr(module, "encode_2d", self.encode)

    def bind(self, config: Any, block: ArgumentBlock, stream: int, grid: int) -> Callable[[], None]:
        return lambda: self.blocks.append(block)

    def encode(self, destination: int, **options: Any) -> None:
        self.maps.append({"destination": destination, **options})

    def at(self, place: str) -> list[dict[str, Any]]:
        """The maps that were encoded at a place of the last block."""
        address = getattr(self.blocks[-1], place)
        return [each for each in self.maps if each["destination"] == address]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def call(dense_kernel: DenseKernel, m: int, n: int = N) -> None:
    case = cases.signed(m, n, K, seed=0)
    out = torch.empty(m, n, dtype=torch.bfloat16)
    dense_kernel(case.a, case.scales_a, case.b, case.scales_b, out=out, stream=0)


def check_boxes(driver: Driver, operand: str, rows: int, box: int) -> None:
    """Whole boxes of so many rows; and, where these leave some over, the same matrix by a box of the rest."""
    (whole,) = driver.at(f"tensor_map_{operand}")
    assert (whole["outer"], whole["box_outer"]) == (rows, box)
    tails = driver.at(f"tensor_map_{operand}_tail")
    assert [tail["box_outer"] for tail in tails] == ([rows % box] if rows % box else [])
    for tail in tails:
        same = {"destination": tail["destination"], "box_outer": tail["box_outer"]}
        assert tail == {**whole, **same}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_rows_that_whole_boxes_leave_over_have_a_map_of_their_own(config: TileConfig, driver: Driver) -> None:
    box = config.block_m // config.cluster_n
    for m in (1, 7, box - 1, box, box + 1, 3 * box - 8, 3 * box, 3 * box + 63):
        driver.maps.clear()
        call(DenseKernel(Problem(m, N, K), config, device_index=0, num_sms=132), m)
        check_boxes(driver, "a", m, box)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_columns_that_whole_boxes_leave_over_have_a_map_of_their_own(config: TileConfig, driver: Driver) -> None:
    box = config.block_n // config.cluster_m
    for n in (8, box - 8, box, box + 8, 3 * box, 3 * box + 24):
        driver.maps.clear()
        call(DenseKernel(Problem(64, n, K), config, device_index=0, num_sms=132), 64, n)
        check_boxes(driver, "b", n, box)


def test_of_a_weight_with_short_rows_l2_fetches_what_is_asked_for(driver: Driver) -> None:
    """Where few rows are multiplied by it, so that reading it takes most of the time."""
    for m, k, fetched in ((192, 1536, 128), (193, 1536, 256), (384, 1024, 128), (385, 1024, 256), (1, 1552, 256)):
        case = cases.signed(m, N, k, seed=0)
        out = torch.empty(m, N, dtype=torch.bfloat16)
        kernel = DenseKernel(Problem(m, N, k), CONFIGS[0], device_index=0, num_sms=132)
        kernel(case.a, case.scales_a, case.b, case.scales_b, out=out, stream=0)
        for place, expected in (("a", 256), ("b", fetched), ("b_tail", fetched)):
            assert {each["fetch_bytes"] for each in driver.at(f"tensor_map_{place}")} <= {expected}, (m, k, place)
        assert driver.at("tensor_map_b")
        driver.maps.clear()
