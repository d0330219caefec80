"""The last row of tiles: only rows of A that exist are loaded, and what else is in their stages reaches no output."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.support import BF16, Kind, configs_of, launch, make_kernels, nans

N, K = 520, 656  # several tile columns; six K blocks, the last one partial
KINDS = (Kind(BF16), Kind(BF16, Scaling.ROW))
CONFIGS = [(kind, config) for kind in KINDS for config in configs_of(kind.problem(1, N, K))]


def numbers_of_rows(config: TileConfig) -> list[int]:
    """A tile and less; of the tile after it a row, some and all but one, so that in a cluster a part of the tile, or a
    CTA, has none; and whole tiles, with a cluster along M an odd number of them."""
    tile, whole = config.block_m, config.block_m * config.cluster_m
    return [1, 5, tile - 1, tile, whole + 1, whole + tile // 2 + 5, whole + tile - 1, whole + tile]


def first_rows(case: Case, rows: int) -> Case:
    """Of A and its scales; in memory the others lie behind them."""
    return replace(case, a=case.a[:rows], scales_a=case.scales_a[:rows])


@pytest.mark.parametrize(("kind", "config"), CONFIGS, ids=lambda value: getattr(value, "label", str(value)))
def test_rows_past_the_last_change_nothing(kind, config, device, seed):
    """The same bits as with zeros up to whole tiles, although NaN is behind the last row, in memory and, left there by
    other tiles of the only SM, in shared memory."""
    (kernel,) = make_kernels([(kind.problem(1, N, K), config)], device, num_sms=config.cluster_size)
    whole = config.block_m * config.cluster_m
    for rows in numbers_of_rows(config):
        of_last = (rows - 1) // whole * whole
        padded = cases.signed(of_last + whole, N, K, seed=seed, device=device, scaling=kind.scaling)
        padded.a[rows:] = 0.0
        clean = launch(kernel, padded, nans(kind.problem(of_last + whole, N, K), device))[:rows]
        first_rows(padded, rows).check(clean).raise_if_failed(f"{config}, {rows} rows")
        around = replace(padded, a=padded.a.clone())
        around.a[:of_last] = math.nan
        around.a[rows:] = math.nan
        out = launch(kernel, first_rows(around, rows), nans(kind.problem(rows, N, K), device))
        assert out[:of_last].isnan().all(), f"{config}, {rows} rows"
        assert same_bits(out[of_last:], clean[of_last:]), f"{config}, {rows} rows"
