"""From checked inputs to the quantisers' kernels: outputs, the kernel, its launch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.driver.current import current_stream, on_device
from fp8gemm.kernels.loaded import quantizer_for
from fp8gemm.kernels.quantize import (
    NORM_ROWS,
    Quantizer,
    QuantizeSource,
    norm_threads,
    quantizer_of_blocks,
    quantizer_of_masked,
    quantizer_of_norm,
    quantizer_of_rows,
    quantizer_with_transpose,
    rows_of_warp,
    warps_of_block,
)
from fp8gemm.scales import block_count, empty_mn_major, empty_mn_major_groups
from fp8gemm.sizes import SCALE_BLOCK

ALIGNMENT = 16
"""Bytes that a lane loads at once: rows begin on multiples of it."""


@lru_cache(maxsize=64)
def rows_quantizer(source: QuantizeSource, dtype: torch.dtype, rows: int) -> Quantizer:
    """The quantiser of activations of a dtype whose warps have so many rows."""
    return quantizer_of_rows(source, INPUTS[dtype], rows)


@lru_cache(maxsize=64)
def masked_quantizer(source: QuantizeSource, dtype: torch.dtype) -> Quantizer:
    """The quantiser of groups of activations of a dtype of which only some rows are there."""
    return quantizer_of_masked(source, INPUTS[dtype])


@lru_cache(maxsize=1024)
def _norm_quantizer(k: int, dtype: torch.dtype, weight: torch.dtype, residual: bool, threads: int) -> Quantizer:
    return quantizer_of_norm(k, INPUTS[dtype], INPUTS[weight], residual=residual, threads=threads)


@lru_cache(maxsize=64)
def _blocks_quantizer(dtype: torch.dtype, warps: int) -> Quantizer:
    return quantizer_of_blocks(INPUTS[dtype], warps)


@lru_cache(maxsize=64)
def _transposing_quantizer(dtype: torch.dtype) -> Quantizer:
    return quantizer_with_transpose(INPUTS[dtype])


def quantize_rows(source: QuantizeSource, x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and MN-major scales of ``x`` (M, K), or (M, 2K) where the source takes two halves."""
    m, columns = x.shape
    k = columns // 2 if source is QuantizeSource.SILU_MUL else columns
    codes, scales = _empty(m, k, x.device)
    quantize_rows_into(source, x, codes, scales)
    return codes, scales


def quantize_rows_into(source: QuantizeSource, x: Tensor, codes: Tensor, scales: Tensor) -> None:
    """`quantize_rows` into memory that lies as that of its results."""
    _run(rows_quantizer(source, x.dtype, rows_of_warp(*codes.shape)), aligned(x), codes, scales)


def quantize_masked(source: QuantizeSource, x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and MN-major scales of the first ``counts`` (G,) rows of each group of ``x`` (G, max_m, K or 2K)."""
    groups, rows, columns = x.shape
    k = columns // 2 if source is QuantizeSource.SILU_MUL else columns
    codes = torch.empty((groups, rows, k), dtype=torch.float8_e4m3fn, device=x.device)
    scales = empty_mn_major_groups(groups, rows, block_count(k), device=x.device)
    if codes.numel():
        index = x.device.index
        kernel = quantizer_for(masked_quantizer(source, x.dtype), index)
        with on_device(index):
            if counts.dtype != torch.int32:
                counts = counts.clamp(0, rows).to(torch.int32)
            x, counts = aligned(x), counts.contiguous()
            kernel.bind_masked(x, codes, scales, counts, stream=current_stream(index))()
    return codes, scales


def quantize_blocks(w: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of 128x128 blocks of ``w`` (N, K)."""
    n, k = w.shape
    codes = torch.empty((n, k), dtype=torch.float8_e4m3fn, device=w.device)
    scales = torch.empty((block_count(n), block_count(k)), dtype=torch.float32, device=w.device)
    _run(_blocks_quantizer(w.dtype, warps_of_block(n, k)), aligned(w), codes, scales)
    return codes, scales


def quantize_both_ways(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes and MN-major scales of ``x`` (M, K), and of its transpose, M rounded up to whole blocks."""
    m, k = x.shape
    codes, scales = _empty(m, k, x.device)
    transpose = _empty(k, block_count(m) * SCALE_BLOCK, x.device)
    _run(_transposing_quantizer(x.dtype), aligned(x), codes, scales, transpose=transpose)
    return codes, scales, *transpose


def quantize_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Codes and MN-major scales of the RMS norm of ``x`` (+ ``residual``), and what was normed."""
    m, k = x.shape
    codes, scales = _empty(m, k, x.device)
    threads = norm_threads(NORM_ROWS if settings.current().batch_invariant else m, k)
    quantizer = _norm_quantizer(k, x.dtype, weight.dtype, residual is not None, threads)
    summed = x if residual is None else torch.empty((m, k), dtype=x.dtype, device=x.device)
    residual = None if residual is None else aligned(residual)
    _run(quantizer, aligned(x), codes, scales, residual=residual, weight=aligned(weight), summed=summed, eps=eps)
    return codes, scales, summed


def aligned(x: Tensor) -> Tensor:
    """``x``, or a copy of it if one of its rows does not begin on a 16-byte boundary."""
    pitches = [stride for size, stride in zip(x.shape[:-1], x.stride(), strict=False) if size > 1]
    off = x.data_ptr() % ALIGNMENT or any(pitch * x.element_size() % ALIGNMENT for pitch in pitches)
    return x.clone(memory_format=torch.contiguous_format) if off else x


def _empty(m: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    codes = torch.empty((m, k), dtype=torch.float8_e4m3fn, device=device)
    return codes, empty_mn_major(m, block_count(k), device=device)


def _run(quantizer: Quantizer, x: Tensor, codes: Tensor, scales: Tensor, **others: Any) -> None:
    """Launch for some rows; ``others`` are those of `QuantizeKernel.bind`."""
    if codes.shape[0]:
        index = x.device.index
        kernel = quantizer_for(quantizer, index)
        with on_device(index):
            kernel.bind(x, codes, scales, stream=current_stream(index), **others)()
