"""The GEMM in plain PyTorch, on any device: what runs without a Hopper GPU, and the truth that every kernel is held to.

It follows the mathematical contract to the letter where the contract is a choice, and is exact elsewhere:

- *Block sums* are exact. A product of two e4m3 codes is a multiple of 2^-18 below 2^18, so 128 of them need 43 bits and
  a float64 matmul adds them without rounding, in whatever order the BLAS likes.
- *The scale* of a block is `s = fl32(scales_a * scales_b)`, rounded (and overflowing, and underflowing) in float32.
- *The sum over blocks* runs in float64, in ascending order, but with float32's range: a partial sum that the FP32
  accumulators of a kernel could not hold becomes Inf here too.
- *C and the bias* are added to that sum, in this order, in float64 and with float32's range again.
- *The output* is rounded once, to nearest even; what is past the range of float16 becomes Inf.

NaN and Inf need no special case: they spread through these operations as IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.quoting import quoted
from fp8gemm.sizes import SCALE_BLOCK

# The output is computed tile by tile, so that no temporary exceeds this many rows x columns of float64 (64 MiB).
_TILE_ROWS = 4096
_TILE_COLUMNS = 2048

# Multiplying by this moves float32's overflow threshold, 2^128, onto float64's, 2^1024, and rounds nothing: sums kept
# in these units turn into Inf where FP32 accumulators would, at no cost.
_FLOAT32_RANGE = 2.0**896

OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_ADDEND_DTYPES = (torch.bfloat16, torch.float32)
_EXACT_DTYPES = (torch.float32, torch.float64)


def gemm_reference(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | str = torch.bfloat16,
) -> Tensor:
    """`D[m,n] = sum_kb s(m,n,kb) * sum_{k in kb} A[m,k] * B[n,k] (+ C[m,n]) (+ bias[n])`.

    `s = fl32(scales_a[m,kb] * scales_b[n/128,kb])`, or `scales_b[n,kb]` where each row of B has scales of its own.

    Args:
        a: (M, K) float8_e4m3fn, any strides. M may be 0.
        scales_a: (M, ceil(K/128)) float32 multipliers, one per row and 128 columns, row-major or MN-major.
        b: (N, K) float8_e4m3fn, any strides.
        scales_b: float32 multipliers, any strides: (ceil(N/128), ceil(K/128)), one per 128x128 block, partial at the
            edges (1D2D), or (N, ceil(K/128)), one per row and 128 columns (1D1D). With N = 1 the two are the same.
        c: (M, N) bfloat16 or float32 to add to the product, any strides. It is read, never written or kept.
        bias: (N,) bfloat16 or float32 to add to each row after `c`.
        out_dtype: bfloat16, float16 or float32, or float64 for the sum before its last rounding; as torch's or by name.

    Returns:
        A new (M, N) of `out_dtype`, row-major, on the device of `a`: the correctly rounded float64 sum.

    Raises:
        InputError: dtypes, shapes or devices do not fit together.
    """
    out_dtype = dtype_of("out_dtype", out_dtype, OUT_DTYPES)
    check_operands(a, scales_a, b, scales_b, c, bias)
    return _sum_scaled_blocks(a, scales_a, b, scales_b, c, bias, out_dtype=out_dtype, magnitude=False)


def gemm_magnitude(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    c: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`S[m,n] = sum_k |A[m,k] * B[n,k]| * |s| (+ |C[m,n]|) (+ |bias[n]|)`: what rounding errors are measured against.

    Where signed terms cancel, an error that is small beside the terms may be large beside their sum, so no bound
    relative to the sum can hold; one relative to S can. Arguments and errors are those of `gemm_reference`.

    Returns:
        (M, N) float64, row-major. Where S is finite, so is the reference before float32's range is applied.
    """
    check_operands(a, scales_a, b, scales_b, c, bias)
    return _sum_scaled_blocks(a, scales_a, b, scales_b, c, bias, out_dtype=torch.float64, magnitude=True)


def dequantize_activation(xq: Tensor, scales: Tensor, *, dtype: torch.dtype | str = torch.float32) -> Tensor:
    """`xq[m,k] * scales[m, k/128]`, multiplied in `dtype` (exact in float64, one rounding in float32).

    Args:
        xq: (M, K) float8_e4m3fn.
        scales: (M, ceil(K/128)) float32, either layout.
        dtype: float32 or float64, as torch's or by name.

    Returns:
        (M, K) of `dtype`, row-major.
    """
    return _dequantize("activation", xq, scales, rows_per_scale=1, dtype=dtype)


def dequantize_weight(wq: Tensor, scales: Tensor, *, dtype: torch.dtype | str = torch.float32) -> Tensor:
    """`wq[n,k] * scales[n/128, k/128]`, multiplied in `dtype` (exact in float64, one rounding in float32).

    Args:
        wq: (N, K) float8_e4m3fn.
        scales: (ceil(N/128), ceil(K/128)) float32.
        dtype: float32 or float64, as torch's or by name.

    Returns:
        (N, K) of `dtype`, row-major.
    """
    return _dequantize("weight", wq, scales, rows_per_scale=SCALE_BLOCK, dtype=dtype)


def round_to_nearest_even(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 `values` correctly rounded to `dtype` (bfloat16, float16, float32; float64 is returned as it is).

    Going through float32 would round twice: 1 + 2^-8 + 2^-40 becomes the tie 1 + 2^-8 and then 1, where bfloat16's
    nearest is 1 + 2^-7. So the float32 step *rounds to odd*: an inexact result takes the neighbour whose last bit is 1.
    That keeps "a little more than a tie" apart from a tie, and with two spare bits or more makes the second step right.
    """
    if dtype in (torch.float64, torch.float32):
        return values.to(dtype)
    nearest = values.to(torch.float32)
    back = nearest.to(torch.float64)
    has_even_code = (nearest.view(torch.int32) & 1) == 0
    towards = torch.where(values > back, torch.inf, -torch.inf).to(torch.float32)
    step_to_odd = (back != values) & has_even_code
    return torch.where(step_to_odd, torch.nextafter(nearest, towards), nearest).to(dtype)


@torch.no_grad()
def _sum_scaled_blocks(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    *,
    out_dtype: torch.dtype,
    magnitude: bool,
) -> Tensor:
    """Both public sums, tile by tile; with `magnitude`, of absolute values and without float32's range."""
    m, n = a.shape[0], b.shape[0]
    unit = 1.0 if magnitude else _FLOAT32_RANGE
    out = torch.empty((m, n), dtype=out_dtype, device=a.device)
    column_scales = scales_b if scales_b.shape[0] == n else scales_b.repeat_interleave(SCALE_BLOCK, dim=0)[:n]
    for row in range(0, m, _TILE_ROWS):
        rows = slice(row, row + _TILE_ROWS)
        for column in range(0, n, _TILE_COLUMNS):
            columns = slice(column, column + _TILE_COLUMNS)
            tile = _sum_tile(a[rows], scales_a[rows], b[columns], column_scales[columns], unit, magnitude)
            if c is not None:
                _add(tile, c[rows, columns], unit, magnitude)
            if bias is not None:
                _add(tile, bias[columns], unit, magnitude)
            out[rows, columns] = round_to_nearest_even(tile.div_(unit), out_dtype)
    return out


def _sum_tile(a: Tensor, row_scales: Tensor, b: Tensor, column_scales: Tensor, unit: float, magnitude: bool) -> Tensor:
    """The scaled sum over blocks of one tile, in units of `1 / unit`."""
    total = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float64, device=a.device)
    values = torch.arange(256, dtype=torch.uint8, device=a.device).view(a.dtype).to(torch.float64)
    for block in range(row_scales.shape[1]):
        ks = slice(block * SCALE_BLOCK, (block + 1) * SCALE_BLOCK)
        codes_a, codes_b = _decode(a[:, ks], values), _decode(b[:, ks], values)
        scale = torch.outer(row_scales[:, block], column_scales[:, block]).to(torch.float64)
        if magnitude:
            codes_a, codes_b, scale = codes_a.abs(), codes_b.abs(), scale.abs()
        total.addcmul_(codes_a.mul_(unit) @ codes_b.T, scale)
    return total


def _decode(codes: Tensor, values: Tensor) -> Tensor:
    """The codes in float64. A CPU finds them among `values`, those of all 256, in a fifth of the time of converting."""
    if codes.device.type != "cpu":
        return codes.to(torch.float64)
    return values.index_select(0, codes.contiguous().view(torch.uint8).flatten().int()).view(codes.shape)


def _add(total: Tensor, addend: Tensor, unit: float, magnitude: bool) -> None:
    """Add C's part or the bias's to `total`, which is in units of `1 / unit`."""
    term = addend.to(torch.float64)
    total += (term.abs() if magnitude else term) * unit


def _dequantize(what: str, codes: Tensor, scales: Tensor, *, rows_per_scale: int, dtype: torch.dtype | str) -> Tensor:
    dtype = dtype_of("dtype", dtype, _EXACT_DTYPES)
    _check_codes(what, codes)
    _check_scales(f"scales of the {what}", scales, codes, rows_per_scale=rows_per_scale)
    n, k = codes.shape
    per_row = scales.repeat_interleave(rows_per_scale, dim=0)[:n].to(dtype)
    return codes.to(dtype).mul_(per_row.repeat_interleave(SCALE_BLOCK, dim=1)[:, :k])


def dtype_of(name: str, dtype: object, known: Collection[torch.dtype]) -> torch.dtype:
    """The one of ``known`` that an argument is, or names, as ``float32`` or ``torch.float32``.

    Raises:
        InputError: it is another one, or anything else.
    """
    for each in known:
        if dtype == each or dtype in (str(each), str(each).removeprefix("torch.")):
            return each
    raise InputError(f"{name}: expected one of {', '.join(map(str, known))}, got {quoted(dtype)}")


def check_operands(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """The arguments of `gemm_reference` fit together.

    Raises:
        InputError: they do not.
    """
    _check_codes("a", a)
    _check_codes("b", b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"a and b: expected (M, K) and (N, K) with one K, got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.device != b.device:
        raise InputError(f"a and b: expected one device, got {a.device} and {b.device}")
    _check_scales("scales_a", scales_a, a, rows_per_scale=1)
    per_row = scales_b.ndim == 2 and scales_b.shape[0] == b.shape[0]
    _check_scales("scales_b", scales_b, b, rows_per_scale=1 if per_row else SCALE_BLOCK, or_per_row=True)
    _check_addend("c", c, (a.shape[0], b.shape[0]), a.device)
    _check_addend("bias", bias, (b.shape[0],), a.device)


def _check_addend(name: str, addend: Tensor | None, expected: tuple[int, ...], device: torch.device) -> None:
    if addend is None:
        return
    if addend.dtype not in _ADDEND_DTYPES:
        raise InputError(f"{name}: expected {' or '.join(map(str, _ADDEND_DTYPES))}, got {addend.dtype}")
    if tuple(addend.shape) != expected:
        raise InputError(f"{name}: expected shape {expected}, got {tuple(addend.shape)}")
    if addend.device != device:
        raise InputError(f"{name}: expected the device of a, {device}, got {addend.device}")


def _check_codes(name: str, codes: Tensor) -> None:
    if codes.dtype != torch.float8_e4m3fn:
        raise InputError(f"{name}: expected torch.float8_e4m3fn, got {codes.dtype}")
    if codes.ndim != 2:
        raise InputError(f"{name}: expected 2 dimensions, rows x K, got shape {tuple(codes.shape)}")


def _check_scales(name: str, scales: Tensor, codes: Tensor, *, rows_per_scale: int, or_per_row: bool = False) -> None:
    rows, k = codes.shape
    expected = (-(-rows // rows_per_scale), -(-k // SCALE_BLOCK))
    if scales.dtype != torch.float32:
        raise InputError(f"{name}: expected torch.float32, got {scales.dtype}")
    if tuple(scales.shape) != expected:
        alternative = f"or {(rows, expected[1])}, one per row, " if or_per_row else ""
        raise InputError(
            f"{name}: expected shape {expected}, one scale per {rows_per_scale}x{SCALE_BLOCK} block of {rows}x{k}, "
            f"{alternative}got {tuple(scales.shape)}"
        )
    if scales.device != codes.device:
        raise InputError(f"{name}: expected the device of its codes, {codes.device}, got {scales.device}")
