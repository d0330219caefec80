"""The order of the tiles of a product as a model, in nested loops: what `banded_raster` of tile_order.cuh computes."""

from __future__ import annotations

from collections.abc import Iterator


def bands(num_m: int, band: int) -> Iterator[range]:
    """Rows of tiles of each band, from the top: as many as one has, but for the last two, which share what is left."""
    top = 0
    while num_m - top > 2 * band:
        yield range(top, top + band)
        top += band
    middle = num_m if num_m - top <= band else top + -(-(num_m - top) // 2)
    yield from filter(len, (range(top, middle), range(middle, num_m)))


def banded(num_m: int, num_n: int, band: int) -> Iterator[tuple[int, int]]:
    """Row and column of each tile: inside a band column by column, in every second one from the right, each column from
    its top."""
    for number, rows in enumerate(bands(num_m, band)):
        for n in reversed(range(num_n)) if number % 2 else range(num_n):
            for m in rows:
                yield m, n
