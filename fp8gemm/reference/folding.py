"""Blocks of 32x32 made blocks of 128x128: the powers of two in their scales go into the codes.

Scales of a 128x128 block's small ones are 2^e, and it gets one, 2^E. A code times 2^(e - E) is a code again, with as
many significant bits, unless it falls among e4m3's subnormals: then it is rounded to nearest even, and the value it
stands for moves by at most 2^-10 2^E. That is exact, or next to it, where quantising anew would move every value by up
to 6 %. E is the least for which no code passes 448, and not less than the least e, below which nothing is rounded:

    E = max(min e, max (e - floor(log2(448 / largest code))))

over the small blocks with a code that is not zero (NaN does not count, and stays where it is). Others have no say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fp8gemm.reference.quantize import least_exponent, powers_of_two, quantize_blocks, quantize_rows
from fp8gemm.scales import Blocks, whole_blocks
from fp8gemm.sizes import SCALE_BLOCK

_BAND = 1 << 22
"""Codes that are worked on at once, so that temporaries take about 100 MB, however large a weight is."""
_SIGN, _NAN = 0x80, 0x7F
_MANTISSA_BITS, _BIAS = 23, 127  # float32's
_MAX_SHIFT = 32
"""Of 19 and more nothing is left: 448 2^-19 rounds to zero. Larger ones are this one, whose power float32 has."""
_MOST = 1 << 10
"""Above any exponent."""

E4M3 = torch.float8_e4m3fn


class Common(NamedTuple):
    """What the wide blocks of a tensor come to; small blocks lie in a grid of whole wide ones.

    Attributes:
        scales: of the wide blocks, float32 (G, N/wide, K/wide).
        shifts: of each small block, how many powers of two its codes lose, int32 (G, small blocks of N, of K); 0 of
            those without a say.
    """

    scales: Tensor
    shifts: Tensor


class Recoded(NamedTuple):
    """Codes for wide blocks.

    Attributes:
        codes: (G, N, K) e4m3.
        scales: float32 (G, N/wide, K/wide).
        errors: of each small block, the norm of what its values moved by over its own; float32, 0 without a say.
    """

    codes: Tensor
    scales: Tensor
    errors: Tensor


@torch.no_grad()
def largest_codes(codes: Tensor, blocks: Blocks) -> Tensor:
    """The largest of the codes of each small block without their signs, as bytes: uint8, 0 where all are 0 or NaN."""
    groups, n, k = codes.shape
    rows, columns = _grid(n, k, blocks)
    largest = torch.empty((groups, rows, columns), dtype=torch.uint8, device=codes.device)
    for group, band in _bands(codes, blocks):
        # NOTE: without its sign a code's byte is larger where its value is.
        sizes = _tiles(codes[group, band].view(torch.uint8), blocks).bitwise_and(_NAN)
        sizes = sizes.where(sizes != _NAN, 0)
        largest[group, _small(band, blocks)] = sizes.amax(dim=(2, 5)).flatten(2, 3).flatten(0, 1)
    return largest


def in_grid(scales: Tensor, blocks: Blocks) -> Tensor:
    """(G, small blocks of N, of K) with zeros up to whole wide blocks."""
    return whole_blocks(scales, blocks.wide.rows // blocks.rows, blocks.wide.columns // blocks.columns)


def are_powers(scales: Tensor) -> Tensor:
    """Which of float32 ``scales`` are positive powers of two that float32 has as normal numbers."""
    bits = scales.contiguous().view(torch.int32)
    exponents = bits >> _MANTISSA_BITS  # with the sign, which makes them negative
    return ((bits & ((1 << _MANTISSA_BITS) - 1)) == 0) & (exponents > 0) & (exponents < 255)


@torch.no_grad()
def common_scales(largest: Tensor, scales: Tensor, blocks: Blocks) -> Common:
    """One scale for each wide block.

    Args:
        largest: of `largest_codes`.
        scales: of the same grid, float32, powers of two where ``largest`` is not 0.
    """
    live = largest > 0
    exponents = (scales.contiguous().view(torch.int32) >> _MANTISSA_BITS) - _BIAS
    needed = exponents + least_exponent(largest.view(E4M3).float())
    least, most = (_of_wide(x, blocks) for x in (exponents.where(live, _MOST), needed.where(live, -_MOST)))
    common = torch.maximum(least.amin(dim=(2, 4)), most.amax(dim=(2, 4)))
    common = common.where(common < _MOST, 0)  # a scale of 1 where all codes are zero, as quantisers have it
    of_small = common.repeat_interleave(blocks.wide.rows // blocks.rows, 1)
    of_small = of_small.repeat_interleave(blocks.wide.columns // blocks.columns, 2)
    return Common(powers_of_two(common), (of_small - exponents).where(live, 0))


@torch.no_grad()
def fold(codes: Tensor, common: Common, blocks: Blocks) -> Recoded:
    """``codes`` (G, N, K) times their small blocks' 2^-shift, rounded to nearest even where e4m3 has not that."""
    out, errors = _empty(codes, common.shifts)
    for group, band in _bands(codes, blocks):
        part, small = codes[group, band], _small(band, blocks)
        # NOTE: the product is exact in bfloat16, so that each code is rounded once.
        shifts = _spread(common.shifts[group, small].clamp(max=_MAX_SHIFT), blocks)
        old = _tiles(part.view(torch.uint8), blocks).view(E4M3).to(torch.bfloat16)
        new = (old * powers_of_two(-shifts).to(torch.bfloat16)).to(E4M3)
        out[group, band] = new.view(torch.uint8).flatten(3).flatten(0, 2)[: part.shape[0], : part.shape[1]]
        errors[group, small] = _moved(old, new, powers_of_two(shifts))
    return Recoded(out.view(E4M3), common.scales, errors)


@torch.no_grad()
def requantize(codes: Tensor, scales: Tensor, blocks: Blocks) -> Recoded:
    """What ``codes`` (G, N, K) stand for, quantised anew with scales of wide blocks, as quantisers choose them.

    Args:
        codes: NaN ones stay, and leave the others of their block as they are.
        scales: float32 of the grid, finite and not negative.
        blocks: the small ones.
    """
    out, errors = _empty(codes, scales)
    counts = codes.shape[0], *blocks.wide.counts(*codes.shape[1:])
    wide = torch.empty(counts, dtype=torch.float32, device=codes.device)
    for group, band in _bands(codes, blocks):
        part, small = codes[group, band], _small(band, blocks)
        of_small = scales[group, small]
        old = _tiles(part.view(torch.uint8), blocks).view(E4M3).float()
        values = (old.nan_to_num() * _spread(of_small, blocks)).flatten(3).flatten(0, 2)
        quantised = (quantize_rows if blocks.wide.rows == 1 else quantize_blocks)(values)
        new = _tiles(quantised[0].view(torch.uint8), blocks)
        new = new.where(~old.isnan(), _NAN)
        out[group, band] = new.flatten(3).flatten(0, 2)[: part.shape[0], : part.shape[1]]
        wide[group, band.start // blocks.wide.rows :][: len(quantised[1])] = quantised[1]
        moved = _moved(old, new.view(E4M3), _ratio(quantised[1], of_small, blocks))
        errors[group, small] = moved.where(of_small > 0, 0.0)
    return Recoded(out.view(E4M3), wide, errors)


def _bands(codes: Tensor, blocks: Blocks) -> Iterator[tuple[int, slice]]:
    """Groups, and rows of each that are worked on at once: whole wide blocks."""
    groups, n, k = codes.shape
    step = max(1, _BAND // (k * blocks.wide.rows)) * blocks.wide.rows
    for group in range(groups):
        yield from ((group, slice(row, min(row + step, n))) for row in range(0, n, step))


def _small(band: slice, blocks: Blocks) -> slice:
    """Of a band of rows, the small blocks in the grid of whole wide ones."""
    of_wide = blocks.wide.rows // blocks.rows
    return slice(band.start // blocks.rows, -(-band.stop // blocks.wide.rows) * of_wide)


def _grid(n: int, k: int, blocks: Blocks) -> tuple[int, int]:
    rows, columns = blocks.wide.counts(n, k)
    return rows * (blocks.wide.rows // blocks.rows), columns * (blocks.wide.columns // blocks.columns)


def _tiles(codes: Tensor, blocks: Blocks) -> Tensor:
    """Bytes (N, K) as (wide rows, small rows, row, wide columns, small columns, column), zeros at the edges."""
    whole = whole_blocks(codes, blocks.wide.rows, SCALE_BLOCK)
    rows, columns = (-1, blocks.wide.rows // blocks.rows, blocks.rows), (SCALE_BLOCK // blocks.columns, blocks.columns)
    return whole.reshape(*rows, whole.shape[1] // SCALE_BLOCK, *columns)


def _of_wide(grid: Tensor, blocks: Blocks) -> Tensor:
    """(G, small rows, small columns) as (G, wide rows, small rows, wide columns, small columns)."""
    rows, columns = blocks.wide.rows // blocks.rows, blocks.wide.columns // blocks.columns
    groups, small_rows, small_columns = grid.shape
    return grid.reshape(groups, small_rows // rows, rows, small_columns // columns, columns)


def _spread(grid: Tensor, blocks: Blocks) -> Tensor:
    """(small rows, small columns) beside `_tiles`."""
    return _of_wide(grid[None], blocks)[0][:, :, None, :, :, None]


def _empty(codes: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Room for new codes, as bytes because not every device fills others, and for errors."""
    out = torch.empty(codes.shape, dtype=torch.uint8, device=codes.device)
    return out, torch.empty(grid.shape, dtype=torch.float32, device=codes.device)


def _ratio(wide: Tensor, small: Tensor, blocks: Blocks) -> Tensor:
    """Scales of wide blocks over those of small ones, beside `_tiles`."""
    ratio: Tensor = wide[:, None, None, :, None, None] / _spread(small, blocks)
    return ratio


def _moved(old: Tensor, new: Tensor, factor: Tensor) -> Tensor:
    """The norm of ``new * factor - old`` over that of ``old`` for each small block, 0 where that is 0; NaN is left out.

    In units of the small block's own scale, so that no square leaves float32's range.
    """
    before = old.float().nan_to_num()
    after = (new.float() * factor).where(before != 0, 0.0)
    moved, size = (x.square().sum(dim=(2, 5)) for x in (after - before, before))
    return (moved / size).sqrt().where(size > 0, 0.0).flatten(2, 3).flatten(0, 1)
