"""The order of tiles, and which of the orders to choose from a kernel gets."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from fp8gemm.kernels.catalogue import candidates, kernel_request
from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.l2 import BANDS, block_in_flight, raster_band
from fp8gemm.tuning.problem import Grouping, OutputType, Problem
from tests.bands import banded

SMS = 132


def walked(index: int, cols: int, band: int) -> tuple[int, int]:
    """Row and column of the tile of an index, in a grid without end: as `banded_raster` of tile_order.cuh."""
    row_of_band, in_band = divmod(index, band * cols)
    return row_of_band * band + in_band % band, in_band // band


def rows_read(label: str, n: int, band: int) -> float:
    """Rows of A and of B that the tiles of a round touch, on average of many rounds."""
    config = labelled_config(label, Problem(8192, n, 4096))
    height, width = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    cols, at_once = -(-n // width), SMS // config.cluster_size
    rounds = ([walked(index, cols, band) for index in range(r * at_once, (r + 1) * at_once)] for r in range(60))
    return fmean(len({row for row, _ in tiles}) * height + len({col for _, col in tiles}) * width for tiles in rounds)


@pytest.mark.parametrize(
    "label",
    [
        "128x256",
        "256x128",
        "128x192",
        "128x160",
        "128x128",
        "64x256",
        "128x64",
        "64x64",
        "128x256-s3-c2x1",
        "256x128-s3-c1x2",
        "128x128-s3-c2x1",
        "64x64-s8-c1x2",
    ],
)
@pytest.mark.parametrize("n", [256, 1472, 2112, 3072, 4096, 7168, 24576])
def test_the_band_is_nearly_the_one_that_touches_the_fewest_rows(label: str, n: int) -> None:
    band = raster_band(labelled_config(label, Problem(8192, n, 4096)), n)
    read = {each: rows_read(label, n, each) for each in BANDS}
    assert read[band] <= 1.08 * min(read.values()), (band, read)


def test_a_block_is_no_larger_than_the_grid() -> None:
    assert block_in_flight(16, 100, 129) == (17.28, 9)
    assert block_in_flight(4, 4, 129) == (36, 4)
    assert block_in_flight(4, 4, 129, grid_rows=10) == (10, 4)
    assert block_in_flight(16, 100, 1) == (1, 1)


def band_of(problem: AnyProblem, config: TileConfig) -> object:
    return dict(kernel_request(problem, config).config)["raster_band"]


@pytest.mark.parametrize("n", [1472, 7168])
@pytest.mark.parametrize("label", ["256x128-s3", "128x256-s3", "128x64", "64x64-s8-c2x1"])
def test_a_kernel_has_the_band_of_its_tile_and_n_whatever_m_is(label: str, n: int) -> None:
    problem = Problem(64, n, 4096)
    config = labelled_config(label, problem)
    assert {band_of(replace(problem, m=m), config) for m in (1, 300, 16384)} == {raster_band(config, n)}


@pytest.mark.parametrize("grouping", [Grouping.MASKED, Grouping.CONTIGUOUS, Grouping.COLUMNS])
def test_groups_have_the_band_of_their_n_too(grouping: Grouping) -> None:
    output = OutputType.FLOAT32 if grouping is Grouping.COLUMNS else OutputType.BFLOAT16
    problem = GroupedProblem(grouping, 4, 1024, 1472, 4096, output)
    config = next(each for each in candidates(problem, named_chip("h200")) if isinstance(each, TileConfig))
    assert band_of(problem, config) == raster_band(config, 1472)


@pytest.mark.parametrize("label", ["128x256", "256x128-s3", "64x64"])
@pytest.mark.parametrize(("m", "n"), [(300, 2048), (4096, 1472), (9000, 7168)])
@pytest.mark.parametrize("sms", [1, 8, 78, 132])
def test_the_block_in_flight_is_about_what_a_walk_touches(label: str, m: int, n: int, sms: int) -> None:
    """Over all full rounds; or the one that there is."""
    config = labelled_config(label, Problem(m, n, 4096))
    rows, cols, band = -(-m // config.block_m), -(-n // config.block_n), raster_band(config, n)
    order = list(banded(rows, cols, band))
    full = [order[index : index + sms] for index in range(0, len(order) - sms + 1, sms)] or [order]
    down = fmean(len({row for row, _ in tiles}) for tiles in full)
    across = fmean(len({col for _, col in tiles}) for tiles in full)
    height, width = block_in_flight(band, cols, sms, rows)
    predicted, walked_over = (
        height * config.block_m + width * config.block_n,
        down * config.block_m + across * config.block_n,
    )
    assert 0.7 <= predicted / walked_over <= 1.4, (height, width, down, across)
