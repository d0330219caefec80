"""Weights with scales of smaller blocks than kernels multiply by, made such as they do: once, when they are loaded.

A tensor core takes 32 of K at once. To scale what each 32 of K add up to, as blocks of 32x32 ask for, costs as many
cycles outside it as the products take inside. But scales that are powers of two can be multiplied into the codes, which
then have one scale for 128x128, and products their full speed; `fp8gemm.reference.folding` says how.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import CODES, listed
from fp8gemm.checks.tensors import check_tensor, found
from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.products.watched import is_plain
from fp8gemm.reference import folding
from fp8gemm.scales import E8M0, Blocks, empty_mn_major, empty_mn_major_groups

SCALE_DTYPES = tuple(dtype for dtype in (torch.float32, torch.bfloat16, E8M0) if dtype is not None)
"""Of scales that others made: they widen to float32 exactly."""

MOST_ERROR = 2.0**-13
"""By how much the values of a block may move, relative to its norm, for it to be folded unasked: a sixteenth of what
rounding to bfloat16 may move one by (docs/numerics.md#blocks-of-32x32)."""

_LARGEST_SCALE = torch.finfo(torch.float32).max / 448


class Names(NamedTuple):
    """What messages call the two tensors."""

    codes: str = "codes"
    scales: str = "scales"


@dataclass(frozen=True)
class Folded:
    """Codes with one scale for 128x128 values, or for 1x128 where the scales were those of single rows.

    Attributes:
        codes: of the shape that was given, float8_e4m3fn; those that were given, not a copy, if none changes.
        scales: float32 multipliers, (..., ceil(N/128), ceil(K/128)), contiguous; of single rows (..., M, ceil(K/128)),
            MN-major.
        largest_shift: the most powers of two that the codes of a block lost, 0 if none did.
        error: the largest, over the blocks that were given, of ``|folded - given| / |given|``, norms of all values but
            NaN; 0 if `exact`.
        requantized: whether values were divided by new scales, because those given are no powers of two.
    """

    codes: Tensor = field(repr=False)
    scales: Tensor = field(repr=False)
    largest_shift: int
    error: float
    requantized: bool

    @property
    def exact(self) -> bool:
        """Whether codes and scales stand for the values that they stood for before."""
        return self.error == 0


def fold_scales(
    codes: Tensor, scales: Tensor, *, block_size: tuple[int, int] = (32, 32), requantize: bool = False
) -> Folded:
    """Codes with a scale for each 128x128 block, of codes with scales for smaller ones; of 1x32 blocks, for 1x128.

    Scales that are powers of two are multiplied into the codes. That is exact but for codes that fall among e4m3's
    subnormals, and done if it moves the values of no block by more than 2^-13 of the block's norm: of normally
    distributed ones, where scales differ by no more than 2^5. Blocks whose codes are all zero or NaN have no say; their
    scales need only be finite. Codes of NaN stay where they are.

    It waits for the GPU, and is for loading: not for CUDA graphs, nor under torch.compile. The formula is in
    `fp8gemm.reference.folding`, what it costs in docs/numerics.md.

    Args:
        codes: (N, K) or (G, N, K) float8_e4m3fn, any sizes and strides. They are not changed.
        scales: (..., ceil(N/rows), ceil(K/columns)) float32, bfloat16 or float8_e8m0fnu multipliers, on that device.
        block_size: rows and columns that share one scale: divisors of 128.
        requantize: also take what the above does not do: powers of two that differ by more are folded as well, at
            the cost of small values beside large ones; and if others than powers of two are among the scales, all
            values are quantised anew, which moves most of them, by up to 6 %. `Folded.error` says how much.

    Returns:
        What `fp8gemm.gemm` and layers take, and how much it differs.

    Raises:
        InputError: a tensor is not as described, is on "meta" or a DTensor; scales are not finite or, without
            ``requantize``, not powers of two from 2^-126 to 2^127, or differ by too much. The message names the block.
    """
    return fold_named(codes, scales, Blocks.of("block_size", block_size), requantize, Names())


def fold_named(codes: Tensor, scales: Tensor, blocks: Blocks, requantize: bool, names: Names) -> Folded:
    """`fold_scales`, whose messages begin with one of ``names``."""
    check_blocks(codes, scales, blocks, names)
    if not codes.numel():
        shape = (*codes.shape[:-2], *blocks.wide.counts(*codes.shape[-2:]))
        nothing = torch.ones(shape, dtype=torch.float32, device=codes.device)
        return Folded(codes, _laid_out(nothing, codes, blocks), 0, 0.0, False)
    stacked = codes.detach() if codes.dim() == 3 else codes.detach()[None]
    grid = folding.in_grid(scales.detach().float().reshape(stacked.shape[0], *scales.shape[-2:]), blocks)
    largest = folding.largest_codes(stacked, blocks)
    are_powers = _check_values(grid, largest > 0, blocks, requantize, names)
    if not are_powers:
        return _result(codes, folding.requantize(stacked, grid, blocks), 0, blocks, requantized=True)
    common = folding.common_scales(largest, grid, blocks)
    if not bool(common.shifts.any()):
        return Folded(codes, _laid_out(common.scales, codes, blocks), 0, 0.0, False)
    recoded = folding.fold(stacked, common, blocks)
    worst = int(recoded.errors.argmax())
    error = float(recoded.errors.flatten()[worst])
    if error > MOST_ERROR and not requantize:
        shift = int(common.shifts.flatten()[worst])
        raise InputError(
            f"{names.scales}: expected blocks of {blocks} whose scales can become one for {blocks.wide}, each block's "
            f"values moved by at most {MOST_ERROR:.1e} of their norm, got {error:.1e} at "
            f"{_place(worst, recoded.errors, blocks)}, whose scale is 2^{shift} below that one; {_INSTEAD}"
        )
    return _result(codes, recoded, int(common.shifts.max()), blocks, requantized=False)


_INSTEAD = "requantize=True takes it: of fp8gemm.fold_scales, from_quantized, use_fp8gemm or load_quantized"


def check_blocks(codes: Tensor, scales: Tensor, blocks: Blocks, names: Names) -> None:
    """Dtypes, shapes and devices of codes and of their scales.

    Raises:
        InputError: they are not those of `fold_scales`.
    """
    for name, tensor in zip(names, (codes, scales), strict=True):
        check_tensor(name, tensor)
        if tensor.is_meta or not is_plain(tensor):
            got = "one on meta" if tensor.is_meta else type(tensor).__name__
            raise InputError(f"{name}: expected a tensor with all its values here, to fold its scales, got {got}")
    if codes.dtype != CODES or codes.dim() not in (2, 3):
        raise InputError(f"{names.codes}: expected {CODES} of shape (N, K) or (G, N, K), got {found(codes)}")
    shape = (*codes.shape[:-2], *blocks.counts(*codes.shape[-2:]))
    if scales.dtype not in SCALE_DTYPES or scales.shape != shape:
        raise InputError(
            f"{names.scales}: expected {listed(SCALE_DTYPES)} of shape {shape}, one for each block of {blocks} of "
            f"{tuple(codes.shape)}, got {found(scales)}"
        )
    if scales.device != codes.device:
        raise InputError(f"{names.scales}: expected the device of {names.codes}, {codes.device}, got {scales.device}")


def _check_values(grid: Tensor, live: Tensor, blocks: Blocks, requantize: bool, names: Names) -> bool:
    """Whether all scales that have a say are powers of two; others must be finite.

    Raises:
        InputError: scales that cannot be folded, or not even be multiplied by.
    """
    unfit = ~(folding.are_powers(grid) | (~live & grid.isfinite()))
    if not bool(unfit.any()):
        return True
    expected, hint = "positive powers of two, 2^-126 to 2^127, that codes can be multiplied by", f"; {_INSTEAD}"
    hopeless = ~((grid >= 0) & (grid <= _LARGEST_SCALE)) & (live | ~grid.isfinite())
    if bool(hopeless.any()):
        unfit, expected, hint = hopeless, f"multipliers from 0 to {_LARGEST_SCALE:.1e}", ""
    elif requantize:
        return False
    worst = int(unfit.flatten().int().argmax())
    value = float(grid.flatten()[worst])
    raise InputError(f"{names.scales}: expected {expected}, got {value!r} at {_place(worst, grid, blocks)}{hint}")


def _result(codes: Tensor, recoded: folding.Recoded, shift: int, blocks: Blocks, *, requantized: bool) -> Folded:
    scales = _laid_out(recoded.scales, codes, blocks)
    return Folded(recoded.codes.view(codes.shape), scales, shift, float(recoded.errors.max()), requantized)


def _laid_out(scales: Tensor, codes: Tensor, blocks: Blocks) -> Tensor:
    """Scales of wide blocks as kernels read them."""
    *groups, n, k = codes.shape
    shape = (*groups, *blocks.wide.counts(n, k))
    scales = scales.reshape(shape)
    if blocks.wide.rows != 1:
        return scales.contiguous()
    rows, columns = shape[-2:]
    if groups:
        return empty_mn_major_groups(groups[0], rows, columns, device=codes.device).copy_(scales)
    return empty_mn_major(rows, columns, device=codes.device).copy_(scales)


def _place(index: int, grid: Tensor, blocks: Blocks) -> str:
    """Where a block is, by its number in the grid of all groups."""
    _, rows, columns = grid.shape
    group, rest = divmod(index, rows * columns)
    row, column = divmod(rest, columns)
    where = f"block ({row}, {column})" if grid.shape[0] == 1 else f"group {group}, block ({row}, {column})"
    return f"{where}, from row {row * blocks.rows} and column {column * blocks.columns} on"
