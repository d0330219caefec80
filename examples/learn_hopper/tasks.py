"""What the kernels of this folder are given, and what they ought to make of it: tensors alone, on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fp8gemm import quantize_activation, quantize_weight
from fp8gemm.reference import gemm_magnitude, gemm_reference
from fp8gemm.scales import block_count, to_mn_major
from fp8gemm.sizes import SCALE_BLOCK

_TRUNCATION = 1e-3
"""Of the sum of a product's terms without their signs: more than the tensor core's short fraction can lose of it."""
_HALF_STEP = {torch.bfloat16: 2.0**-8, torch.float32: 0.0}


class Map(NamedTuple):
    """A matrix, row-major, of which TMA copies boxes of so many rows and columns; swizzled by 128 bytes or not."""

    matrix: Tensor
    rows: int
    cols: int
    swizzled: bool = True


@dataclass(frozen=True)
class Task:
    """The arguments of a launch in the order of a kernel's ``Params``, and its right result.

    Attributes:
        what: what is computed, for people.
        tiles: of the output.
        out: what the kernel writes; NaN, or 255 in bytes, before.
        expected: (rows, cols) float64, or bytes.
        magnitude: what errors are measured against; None where there may be none.
    """

    what: str
    maps: tuple[Map, ...]
    pointers: tuple[Tensor, ...]
    numbers: tuple[int, ...]
    tiles: int
    out: Tensor
    expected: Tensor
    magnitude: Tensor | None

    def error(self) -> tuple[float, float]:
        """The worst error and its limit: of elements that differ, or relative to the magnitude."""
        if self.magnitude is None:
            return float((self.out != self.expected).sum()), 0.0
        rounding = _HALF_STEP[self.out.dtype] * self.expected.abs()
        beyond = ((self.out.double() - self.expected).abs() - rounding).clamp(min=0) / self.magnitude.clamp(min=1e-30)
        return float(beyond.nan_to_num(nan=torch.inf).max()), _TRUNCATION


class Operands(NamedTuple):
    """Codes (M, K) and (N, K), scales (M, ceil(K/128)), MN-major, and (ceil(N/128), ceil(K/128))."""

    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor


def make_operands(m: int, n: int, k: int, device: torch.device, exact: bool) -> Operands:
    """Normal values, quantised; or, for sums without any rounding, small integers whose scales are powers of two."""
    generator = torch.Generator(device).manual_seed(m * n + k)
    if not exact:
        a, b = (torch.randn(rows, k, generator=generator, device=device).bfloat16() for rows in (m, n))
        return Operands(*quantize_activation(a), *quantize_weight(b))

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device).float()

    scales_a = to_mn_major(integers(-1, 2, m, block_count(k)).exp2())
    scales_b = integers(-1, 2, block_count(n), block_count(k)).exp2()
    codes_a, codes_b = (integers(-4, 5, rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
    return Operands(codes_a, scales_a, codes_b, scales_b)


def copy_bytes(m: int, n: int, k: int, *, device: torch.device, exact: bool = False) -> Task:
    """Step 1: (M, N) bytes; K means nothing."""
    source = torch.randint(0, 255, (m, n), generator=torch.Generator(device).manual_seed(m + n), device=device)
    source = source.to(torch.uint8)
    out = torch.full_like(source, 255)
    what = f"copy of {m} x {n} bytes"
    return Task(what, (Map(source, 64, 128),), (out,), (m, n), -(-n // 128), out, source, None)


def multiply_block(m: int, n: int, k: int, *, device: torch.device, exact: bool = False) -> Task:
    """Step 2: codes without scales; K is at most 128."""
    a, _, b, _ = make_operands(m, n, k, device, exact)
    ones = torch.ones(m, 1, device=device), torch.ones(block_count(n), 1, device=device)
    maps = Map(_bytes(a), 64, SCALE_BLOCK), Map(_bytes(b), 128, SCALE_BLOCK)
    out = torch.full((m, n), torch.nan, device=device)
    return _product(Operands(a, ones[0], b, ones[1]), maps, (out,), (m, n), 64, out, exact)


def promote_blocks(m: int, n: int, k: int, *, device: torch.device, exact: bool = False) -> Task:
    """Step 3."""
    operands = make_operands(m, n, k, device, exact)
    maps = Map(_bytes(operands.a), 64, SCALE_BLOCK), Map(_bytes(operands.b), 128, SCALE_BLOCK)
    out = torch.full((m, n), torch.nan, device=device)
    pointers = operands.scales_a, operands.scales_b, out
    return _product(operands, maps, pointers, (m, n, k, operands.scales_a.stride(1)), 64, out, exact)


def divide_roles(m: int, n: int, k: int, *, device: torch.device, exact: bool = False) -> Task:
    """Step 4."""
    operands = make_operands(m, n, k, device, exact)
    out = torch.full((m, n), torch.nan, device=device)
    return _product(operands, _loaded(operands), (operands.scales_b, out), (m, n, k, 0), 128, out, exact)


def walk_tiles(m: int, n: int, k: int, *, device: torch.device, exact: bool = False) -> Task:
    """Step 5."""
    operands = make_operands(m, n, k, device, exact)
    out = torch.full((m, n), torch.nan, device=device, dtype=torch.bfloat16)
    maps = *_loaded(operands), Map(out, 64, 64)
    return _product(operands, maps, (operands.scales_b,), (m, n, k, 0), 128, out, exact)


def _bytes(codes: Tensor) -> Tensor:
    return codes.view(torch.uint8)


def _loaded(operands: Operands) -> tuple[Map, Map, Map]:
    scales = Map(operands.scales_a.t(), 1, 128, swizzled=False)
    return Map(_bytes(operands.a), 128, SCALE_BLOCK), Map(_bytes(operands.b), 128, SCALE_BLOCK), scales


def _product(
    operands: Operands,
    maps: tuple[Map, ...],
    pointers: tuple[Tensor, ...],
    numbers: tuple[int, ...],
    tile_rows: int,
    out: Tensor,
    exact: bool,
) -> Task:
    (m, k), n = operands.a.shape, operands.b.shape[0]
    expected = gemm_reference(*operands, out_dtype=out.dtype if exact else torch.float64)
    magnitude = None if exact else gemm_magnitude(*operands)
    what = f"product of {m} x {n} x {k}, {str(out.dtype).removeprefix('torch.')}"
    tiles = -(-m // tile_rows) * -(-n // 128)
    return Task(what, maps, pointers, numbers, tiles, out, expected, magnitude)


TASKS: dict[str, Callable[..., Task]] = {
    "tma_ring": copy_bytes,
    "wgmma": multiply_block,
    "promotion": promote_blocks,
    "warp_roles": divide_roles,
    "persistent": walk_tiles,
}
"""By the name of a kernel's entry: makes its task of M, N and K."""
