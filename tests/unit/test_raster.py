"""The order of tiles, and which of the orders to choose from a kernel gets."""

from __future__ import annotations

from statistics import fmean

import pytest

from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.raster import BANDS, block_in_flight, raster_band

SMS = 132


def walked(index: int, cols: int, band: int) -> tuple[int, int]:
    """Row and column of the tile of an index, in a grid without end: as `banded_raster` of tile_order.cuh."""
    row_of_band, in_band = divmod(index, band * cols)
    return row_of_band * band + in_band % band, in_band // band


def rows_read(label: str, n: int, band: int) -> float:
    """Rows of A and of B that the tiles of a round touch, on average of many rounds."""
    config = labelled_config(label, Problem(8192, n, 4096))
    cols = -(-n // config.block_n)
    rounds = ([walked(index, cols, band) for index in range(r * SMS, (r + 1) * SMS)] for r in range(60))
    return fmean(
        len({row for row, _ in tiles}) * config.block_m + len({col for _, col in tiles}) * config.block_n
        for tiles in rounds
    )


@pytest.mark.parametrize("label", ["128x256", "256x128", "128x192", "128x160", "128x128", "64x256", "128x64", "64x64"])
@pytest.mark.parametrize("n", [256, 1472, 2112, 3072, 4096, 7168, 24576])
def test_the_band_is_nearly_the_one_that_touches_the_fewest_rows(label: str, n: int) -> None:
    band = raster_band(labelled_config(label, Problem(8192, n, 4096)), n)
    read = {each: rows_read(label, n, each) for each in BANDS}
    assert read[band] <= 1.08 * min(read.values()), (band, read)


def test_a_block_is_no_larger_than_the_grid() -> None:
    assert block_in_flight(16, 100, 129) == (17.28, 9)
    assert block_in_flight(4, 4, 129) == (36, 4)
    assert block_in_flight(4, 4, 129, grid_rows=10) == (10, 4)
    assert block_in_flight(16, 100, 1) == (16, 1)
