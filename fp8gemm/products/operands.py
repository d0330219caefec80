"""Where operands go, to the reference or to kernels, and how they lie: what TMA can address, what is copied first."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.driver import forking
from fp8gemm.scales import empty_mn_major, empty_mn_major_groups, mn_major_pitch
from fp8gemm.tuning.problem import StoreKind

_ALIGNMENT = 16  # bytes: TMA's rule for base addresses and row pitches


def uses_reference(tensor: Tensor) -> bool:
    """Whether an operation on ``tensor`` is one for the reference: it is on no GPU, or the settings say so.

    Raises:
        UnsupportedDeviceError: it is not, and this process cannot use CUDA, because it was forked too late.
    """
    if tensor.device.type != "cuda" or settings.current().backend == "reference":
        return True
    if forking.lost:
        forking.refuse()
    return False


def contiguous_rows(x: Tensor) -> Tensor:
    """``x`` itself, or a copy if its last dimension is not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def store_kind(out: Tensor, c: Tensor | None = None) -> StoreKind:
    """Whether TMA can write ``out``: rows contiguous; base, row pitch and row length multiples of 16 bytes.

    TMA takes the pitch in such units, and writes in them: the last piece of a row whole, whatever lies past its end.
    The stride of a single row means nothing, so that new outputs of all M agree. A kernel with such a store reads
    ``c``, if there is one, in aligned pairs of a row's elements, so that must be possible too.
    """
    rows, cols = out.shape
    size = out.element_size()
    pitch = out.stride(0) if rows > 1 else cols
    aligned = not (cols * size % _ALIGNMENT or pitch * size % _ALIGNMENT or out.data_ptr() % _ALIGNMENT)
    by_tma = aligned and out.stride(1) == 1 and (c is None or _lies_in_pairs(c))
    return StoreKind.TMA if by_tma else StoreKind.PREDICATED


def accumulates(out: Tensor, c: Tensor | None) -> bool:
    """Whether ``out`` is the float32 ``c`` that a product is added to."""
    return c is not None and c.dtype is torch.float32 and c.data_ptr() == out.data_ptr()


def tma_scales(scales: Tensor) -> Tensor:
    """Scales of rows as TMA can read them: rows adjacent, columns on 16-byte boundaries. A copy if they are not so."""
    rows, k_blocks = scales.shape
    rows_adjacent = rows == 1 or scales.stride(0) == 1
    pitched = k_blocks == 1 or (scales.stride(1) % 4 == 0 and scales.stride(1) >= rows)
    if rows_adjacent and pitched and scales.data_ptr() % _ALIGNMENT == 0:
        return scales
    return empty_mn_major(rows, k_blocks, device=scales.device).copy_(scales)


def tma_scales_of_groups(scales: Tensor) -> Tensor:
    """Scales (G, max_m, K blocks) as TMA can read them: each group's MN-major, packed. A copy if they are not so."""
    groups, rows, blocks = scales.shape
    pitch = scales.stride(2) if blocks > 1 else mn_major_pitch(rows)
    in_columns = (rows == 1 or scales.stride(1) == 1) and pitch % 4 == 0 and pitch >= rows
    if in_columns and (groups == 1 or scales.stride(0) == blocks * pitch) and scales.data_ptr() % _ALIGNMENT == 0:
        return scales.as_strided((groups, rows, blocks), (blocks * pitch, 1, pitch))
    return empty_mn_major_groups(groups, rows, blocks, device=scales.device).copy_(scales)


def rows_of_groups(x: Tensor) -> Tensor:
    """(G, rows, columns), groups one behind the other, as (G * rows, columns)."""
    groups, rows, columns = x.shape
    return x.as_strided((groups * rows, columns), (x.stride(1), x.stride(2)))


def _lies_in_pairs(c: Tensor) -> bool:
    """Whether elements (m, 2i) and (m, 2i + 1) of ``c`` are neighbours at an address that both their bytes divide."""
    in_rows = c.stride(1) == 1 and (c.shape[0] == 1 or c.stride(0) % 2 == 0)
    return in_rows and c.data_ptr() % (2 * c.element_size()) == 0
