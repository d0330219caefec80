"""What a kernel leaves in L2 for whom: by the order of its tiles, and by which weight passes through.

It walks the tiles of the output in bands of a few tile rows, down each column of a band. The tiles that run at the
same time are then a block of the grid, and the rows of A and B that it touches are what device memory delivers for a
round of tiles: joules as well as time. How high bands must be for a block to touch the fewest depends on the tile and
on how many columns of tiles there are. What that gains over bands of 16 rows: 2 % where there are six columns of
128x256 tiles (8036x1472x14720, 10787x1536x5248), 2 to 3 % for tiles of 256x128 (eight products). Bands of 32 rows lose
1 to 4 % (bursts, H100, 2026-11-25). The last two bands are about equally high, because one of few rows shares little: 0
to 1.6 % where the last one had few (nine products, bursts, H100, 2026-11-26).

The weight of few rows is read about once, while what the kernels around share had better stay: it is asked for with the
hint to leave first. Products of 64 to 192 rows whose output is an eighth of the weight at most are up to 6 % faster by
it, 2 % on average, and layers up to 7 and 4 %. With larger outputs, and from 256 rows on, products lose up to 6 %
(128x24576x1536 3, 64x32768x512 6), of 512 rows and more up to 17, though layers of 256 rows still gain 1 %. Groups lose
up to 10 % (H200, 2026-11-27).
"""

from __future__ import annotations

import math

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Problem, Scaling

BANDS = (4, 8, 16)
"""Heights to choose from, in cluster tiles."""

_SMS = 132
"""That bands are for: a kernel is compiled for every number of SMs. With 78 of them bands of 16 rows touch at least 8 %
more than the best band at 39 of 56 pairs of tile and N, these bands at 16."""

_LARGEST_TILE = 128 * 256
"""Outputs of what `out_of_step_bytes` compares with."""

STREAMED_FROM = 64
"""Rows from which it was measured; fewer are mostly the swapped orientation's, which does so always. A weight that
could be streamed for fewer alone is not, which leaves its kernel a shorter way to the first load."""
_MOST_ROWS = 255
_OUTPUTS_OF_WEIGHT = 8
"""The weight has as many bytes as so many outputs, or more."""


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


def refetched_bytes(
    product: tuple[int, int, int], tile: tuple[int, int], band: int, clusters: int, capacity: float
) -> float:
    """Operand bytes of an M x N x K product that are read from device memory more than once.

    The tiles of a round are a block of the tile grid, and read the rows of A and of B that this block touches. The next
    rounds find in L2 what is still there of them.
    """
    (m, n, _), (rows, cols) = product, tile
    misses = _misses(product, capacity)
    if misses == 0.0:
        return 0.0
    grid_rows, grid_cols = -(-m // rows), -(-n // cols)
    down, across = block_in_flight(band, grid_cols, clusters, grid_rows)
    return _again(product, grid_rows * grid_cols / clusters, down * rows + across * cols) * misses


def out_of_step(k: int) -> float:
    """How far the tiles of a round come to be apart, from 0 to 1: by up to a tile's time, for which L2 has to hold all
    K of what they share. It showed where K is more than 8192 (docs/tuning.md, "The choice")."""
    return _ramp((k - 8192) / 1024)


def out_of_step_bytes(product: tuple[int, int, int], refetched: float, ctas: int, capacity: float) -> float:
    """What tiles that are wholly out of step fetch again beyond what tiles of 128x256 would.

    It showed where rounds are several, by tiles that are smaller: how much more those of 128x256 fetch, all else that a
    K block takes does not tell apart.

    Args:
        product: M, N, K.
        refetched: what the tiles in question fetch again, in step, in bytes.
        ctas: that run at once.
        capacity: as for `refetched_bytes`.

    Returns:
        Bytes; 0 where rounds are two at most, or tiles as large in a square.
    """
    m, n, _ = product
    rounds = m * n / (_LARGEST_TILE * ctas)
    several = _ramp((rounds - 2.0) / 3.0)
    if several == 0.0:
        return 0.0
    of_largest = _again(product, rounds, 2.0 * math.sqrt(_LARGEST_TILE * ctas)) * _misses(product, capacity)
    return several * max(refetched - of_largest, 0.0)


def _misses(product: tuple[int, int, int], capacity: float) -> float:
    """What fits in L2 is read once; of what is larger, a share that grows from none to all of it is read again."""
    m, n, k = product
    return _ramp((m + n) * k / capacity - 1.0)


def _again(product: tuple[int, int, int], rounds: float, touched: float) -> float:
    """Bytes that so many rounds read more than once, each of which reads so many rows of A and of B."""
    m, n, k = product
    return max(max(rounds, 1.0) * touched * k - (m + n) * k, 0.0)


def _ramp(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def streamed_rows(problem: Problem, config: TileConfig) -> int:
    """Up to how many rows B leaves L2 first, whatever the problem's M is; 0 if it never does.

    Not what a cluster shares, which was not measured, nor the operand of a gradient, which others read again. The
    kernel compares its own M with it, the model the M that choices count.
    """
    if problem.scaling is not Scaling.BLOCK or config.cluster_m * config.cluster_n > 1:
        return 0
    rows = min(_MOST_ROWS, problem.k // (_OUTPUTS_OF_WEIGHT * problem.output.bytes))
    return rows if rows >= STREAMED_FROM else 0
