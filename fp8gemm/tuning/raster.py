"""The order in which a kernel walks the tiles of the output: in bands of a few tile rows, down each column of a band.

The tiles that run at the same time are then a block of the grid, and the rows of A and B that it touches are what
device memory delivers for a round of tiles: joules as well as time. How high bands must be for a block to touch the
fewest depends on the tile and on how many columns of tiles there are. What that gains over bands of 16 rows: 2 %
where there are six columns of 128x256 tiles (8036x1472x14720, 10787x1536x5248), 2 to 3 % for tiles of 256x128 (eight
products). Bands of 32 rows lose 1 to 4 % (bursts, H100, 2026-11-25). The last two bands are about equally high, because
one of few rows shares little: 0 to 1.6 % where the last one had few (nine products, bursts, H100, 2026-11-26).
"""

from __future__ import annotations

import math

from fp8gemm.tuning.config import TileConfig

BANDS = (4, 8, 16)
"""Heights to choose from, in cluster tiles."""

_SMS = 132
"""That bands are for: a kernel is compiled for every number of SMs. With 78 of them bands of 16 rows touch at least 8 %
more than the best band at 39 of 56 pairs of tile and N, these bands at 16."""


def raster_band(config: TileConfig, n: int) -> int:
    """Height, in cluster tiles, of the bands in which the output of N columns is walked."""
    rows, cols = config.block_m * config.cluster_m, config.block_n * config.cluster_n

    def touched(band: int) -> float:
        down, across = block_in_flight(band, -(-n // cols), _SMS / config.cluster_size)
        return down * rows + across * cols

    return min(BANDS, key=touched)


def block_in_flight(band: float, grid_cols: int, clusters: float, grid_rows: float = math.inf) -> tuple[float, float]:
    """Height and width, in cluster tiles, of the block of the grid that so many clusters compute at the same time, on
    average: it begins and ends inside columns of a band, and may lie in several bands, which are taken to be equally
    high."""
    others = clusters - 1.0
    if math.isfinite(grid_rows):
        band = grid_rows / math.ceil(grid_rows / band)
    return min(band + others / grid_cols, grid_rows, clusters), min(1.0 + others / band, grid_cols)
