"""Scale layouts: how the multipliers of 1x128 and 128x128 blocks lie in memory.

A GEMM reads activation scales a column at a time (128 rows, one K block), so its layout of choice is *MN-major*: shape
(M, ceil(K/128)), consecutive rows adjacent, and each column starting on a multiple of 16 bytes, which TMA demands of a
pitch; that is strides (1, align(M, 4)).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.quoting import quoted
from fp8gemm.sizes import SCALE_BLOCK

_ROWS_PER_16_BYTES = 4

E8M0: torch.dtype | None = getattr(torch, "float8_e8m0fnu", None)
"""Scales that are powers of two, in a byte each; since torch 2.7. They widen to float32 exactly."""


def widened(scales: Tensor) -> Tensor:
    """Scales of `E8M0` as float32, others as they are."""
    return scales.to(torch.float32) if scales.dtype is E8M0 else scales


@dataclass(frozen=True)
class Blocks:
    """Rows and columns of a matrix that share one scale: divisors of 128."""

    rows: int
    columns: int

    @classmethod
    def of(cls, name: str, size: object) -> Blocks:
        """From two numbers, as a checkpoint's configuration has them.

        Raises:
            InputError: ``size`` is anything else; the message begins with ``name``.
        """
        if isinstance(size, (tuple, list)) and len(size) == 2:
            rows, columns = size
            if all(type(each) is int and 0 < each <= SCALE_BLOCK and SCALE_BLOCK % each == 0 for each in size):
                return cls(rows, columns)
        raise InputError(f"{name}: expected two divisors of {SCALE_BLOCK}, as (32, 32), got {quoted(size)}")

    @property
    def wide(self) -> Blocks:
        """Those of the kernels that these are parts of: 1x128 of single rows, else 128x128."""
        return Blocks(1 if self.rows == 1 else SCALE_BLOCK, SCALE_BLOCK)

    def counts(self, rows: int, columns: int) -> tuple[int, int]:
        """How many cover a matrix; the last may be partial."""
        return -(-rows // self.rows), -(-columns // self.columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


OF_WEIGHTS = Blocks(SCALE_BLOCK, SCALE_BLOCK)
"""What kernels multiply by, and layers keep."""


def weight_blocks(name: str, size: object) -> Blocks:
    """`Blocks.of` a weight: `OF_WEIGHTS`, or parts of those, whose scales can be folded.

    Raises:
        InputError: others; the message begins with ``name``.
    """
    blocks = Blocks.of(name, size)
    if blocks.wide != OF_WEIGHTS:
        raise InputError(f"{name}: expected blocks of several rows, which become {OF_WEIGHTS}, got {quoted(size)}")
    return blocks


def block_count(size: int) -> int:
    """How many 128-wide blocks cover `size`; the last may be partial."""
    return -(-size // SCALE_BLOCK)


def whole_blocks(x: Tensor, rows: int, columns: int) -> Tensor:
    """(..., M, N) with zeros below and at the right, up to whole blocks of ``rows`` x ``columns``; x if it has them."""
    *outer, m, n = x.shape
    below, right = -m % rows, -n % columns
    if not (below or right):
        return x
    # NOTE: torch 2.6 refuses to pad a tensor that is empty in a dimension that stays as it is.
    return pad(x, (0, right, 0, below)) if x.numel() else x.new_zeros((*outer, m + below, n + right))


def mn_major_pitch(rows: int) -> int:
    """Elements from one column of MN-major scales to the next: `rows` rounded up to a multiple of four."""
    return -(-rows // _ROWS_PER_16_BYTES) * _ROWS_PER_16_BYTES


def is_mn_major(scales: Tensor) -> bool:
    """Whether 2-D `scales` have exactly the strides (1, align(M, 4))."""
    return scales.stride() == (1, mn_major_pitch(scales.shape[0]))


def empty_mn_major(rows: int, columns: int, *, device: torch.device) -> Tensor:
    """Uninitialised (rows, columns) float32 scales, MN-major; every column's padding belongs to the storage too."""
    pitch = mn_major_pitch(rows)
    return torch.empty(columns * pitch, dtype=torch.float32, device=device).as_strided((rows, columns), (1, pitch))


def empty_mn_major_groups(groups: int, rows: int, columns: int, *, device: torch.device) -> Tensor:
    """Uninitialised (groups, rows, columns) float32 scales, MN-major in each group, one group right after another."""
    pitch = mn_major_pitch(rows)
    shape, strides = (groups, rows, columns), (columns * pitch, 1, pitch)
    return torch.empty(groups * columns * pitch, dtype=torch.float32, device=device).as_strided(shape, strides)


def scales_offset(rows: int, k: int) -> int:
    """Bytes of a workspace ahead of the scales of so many quantised rows: their codes, and what is left of a line."""
    return -(-rows * k // SCALE_BLOCK) * SCALE_BLOCK


def quantized_bytes(rows: int, k: int) -> int:
    """Of a workspace for codes and MN-major scales of so many rows."""
    return scales_offset(rows, k) + 4 * mn_major_pitch(rows) * block_count(k)


def quantized_in(workspace: Tensor, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """Codes (rows, K) and MN-major scales in `quantized_bytes` of uint8, without a copy."""
    codes = workspace[: rows * k].view(torch.float8_e4m3fn).view(rows, k)
    return codes, scales_in(workspace[scales_offset(rows, k) :], rows, k)


def scales_in(place: Tensor, rows: int, k: int) -> Tensor:
    """MN-major scales of so many rows in that part of a workspace, uint8, without a copy."""
    return place.view(torch.float32).as_strided((rows, block_count(k)), (1, mn_major_pitch(rows)))


def to_mn_major(scales: Tensor) -> Tensor:
    """`scales` in the MN-major layout.

    Args:
        scales: (M, ceil(K/128)) float32, any strides.

    Returns:
        The same values with strides (1, align(M, 4)): `scales` itself if it has them, else a copy.

    Raises:
        InputError: `scales` is not a tensor, or not two-dimensional float32.
    """
    if not isinstance(scales, Tensor) or scales.layout is not torch.strided:
        raise InputError(
            f"scales: expected a dense torch.Tensor, got {getattr(scales, 'layout', type(scales).__name__)}"
        )
    if scales.dtype != torch.float32:
        raise InputError(f"scales: expected torch.float32, got {scales.dtype}")
    if scales.ndim != 2:
        raise InputError(f"scales: expected 2 dimensions, (M, ceil(K/128)), got shape {tuple(scales.shape)}")
    if is_mn_major(scales):
        return scales
    return empty_mn_major(scales.shape[0], scales.shape[1], device=scales.device).copy_(scales)
