"""How many tiles a launch may have: as many as kernels count in 32 bits. More are refused before anything starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fp8gemm.errors import InputError
from fp8gemm.kernels import gemm as kernel
from fp8gemm.kernels.catalogue import load_kernel
from fp8gemm.kernels.grouped import GroupedKernel
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Grouping, OutputType, Problem
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig

SMS = 132
COLUMNS = 2**20
"""Of tiles, or of cluster tiles: 2047 rows of them are countable, 2048 are not."""
TILE, PAIR = TileConfig(64, 64, 4, warpgroups_m=1), TileConfig(64, 64, 4, cluster_n=2, warpgroups_m=1)
SWAPPED, DIVIDED = SwapAbConfig(8, 16, 2), SwapAbConfig(8, 16, 2, split_k=2)


@pytest.fixture(autouse=True)
def _played_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "load", lambda *arguments, **options: SimpleNamespace(function=0))
    monkeypatch.setattr(kernel, "LaunchConfig", SimpleNamespace)
    monkeypatch.setattr(kernel, "max_active_clusters", lambda config: SMS)


@pytest.mark.parametrize(
    ("config", "columns_of_tile"),
    [(TILE, 64), (PAIR, 128), (SWAPPED, 16)],
    ids=["tiles", "cluster tiles", "swapped"],
)
def test_products_of_more_tiles_than_32_bits_count_are_refused(config: Config, columns_of_tile: int) -> None:
    made = load_kernel(Problem(1, COLUMNS * columns_of_tile, 16), config, device_index=0, num_sms=SMS)
    assert made.grid(2047 * config.block_m) > 0
    for rows in (2047 * config.block_m + 1, 4096 * config.block_m, 2**31):
        with pytest.raises(InputError, match=r"expected an output of at most 2147483647 tiles, got \d+; divide M or N"):
            made.grid(rows)


def test_a_grid_has_no_more_ctas_than_cuda_launches() -> None:
    made = load_kernel(Problem(1, COLUMNS * 16, 16), DIVIDED, device_index=0, num_sms=SMS)
    assert made.grid(1023 * 8) == 1023 * 2 * COLUMNS
    with pytest.raises(InputError, match="at most 2147483647"):
        made.grid(1024 * 8)


@pytest.mark.parametrize(
    ("grouping", "groups", "config", "most_rows"),
    [
        (Grouping.MASKED, 23, TILE, 89 * 64),
        (Grouping.MASKED, 23, SWAPPED, 89 * 8),
        (Grouping.COLUMNS, 23, TILE, 89 * 64),
        (Grouping.CONTIGUOUS, 23, TILE, 2047 * 64 - 23 * 63),
        (Grouping.CONTIGUOUS, 23, SWAPPED, 2047 * 8 - 23 * 7),
    ],
)
def test_groups_of_more_tiles_than_32_bits_count_are_refused(
    grouping: Grouping, groups: int, config: Config, most_rows: int
) -> None:
    """Whatever their sizes are, as long as they do not overlap."""
    n, k = COLUMNS * config.block_n, 128 if grouping is not Grouping.COLUMNS else 4096
    output = OutputType.FLOAT32 if grouping is Grouping.COLUMNS else OutputType.BFLOAT16
    made = GroupedKernel(GroupedProblem(grouping, groups, 1, n, k, output), config, device_index=0, num_sms=SMS)
    assert made.grid(most_rows) == SMS
    with pytest.raises(InputError, match="at most 2147483647 tiles"):
        made.grid(most_rows + 1)
