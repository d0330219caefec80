"""Operands with scales of small blocks: made, dequantised, and as a product whose K blocks are those small ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.products.folding import Folded
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.reference import quantize_small_blocks
from fp8gemm.scales import Blocks
from tests.diagnosis import Inputs
from tests.numerics import Data, Report, check

E4M3 = torch.float8_e4m3fn
SMALL, ROWS = Blocks(32, 32), Blocks(1, 32)
Operand = tuple[Tensor, Tensor]
"""Codes and scales."""


def values(codes: Tensor, scales: Tensor, blocks: Blocks) -> Tensor:
    """What codes (..., N, K) stand for, in float64."""
    n, k = codes.shape[-2:]
    of_all = scales.double().repeat_interleave(blocks.rows, -2).repeat_interleave(blocks.columns, -1)
    return codes.double() * of_all[..., :n, :k]


def of_folded(folded: Folded, blocks: Blocks) -> Tensor:
    """What folded codes stand for, in float64."""
    return values(folded.codes, folded.scales, blocks.wide)


def moved(codes: Tensor, scales: Tensor, folded: Folded, blocks: Blocks) -> Tensor:
    """For each small block of (N, K) the norm of what its values moved by over its own, in float64; 0 for zeros."""
    before, after = values(codes, scales, blocks).nan_to_num(), of_folded(folded, blocks).nan_to_num()
    n, k = codes.shape
    sums = []
    for each in (after - before, before):
        whole = pad(each.square(), (0, -k % blocks.columns, 0, -n % blocks.rows))
        sums.append(whole.unflatten(1, (-1, blocks.columns)).unflatten(0, (-1, blocks.rows)).sum(dim=(1, 3)))
    return (sums[0] / sums[1]).sqrt().where(sums[1] > 0, 0.0)


def weight(n: int, k: int, most: int, *, seed: int, device: torch.device | str = "cpu") -> Operand:
    """Normal values quantised in 32x32 blocks, whose scales are then drawn: 2^0 to 2^-most, either end among them."""
    draw = torch.Generator(device).manual_seed(seed)
    codes, _ = quantize_small_blocks(torch.randn(n, k, generator=draw, device=device), SMALL)
    shifts = torch.randint(0, most + 1, SMALL.counts(n, k), generator=draw, device=device)
    shifts[::3, ::2], shifts[1::3, 1::2] = 0, most
    return codes, (-shifts.float()).exp2()


def activations(m: int, k: int, *, seed: int, device: torch.device | str = "cpu") -> Operand:
    """Normal values quantised in rows of 128 columns."""
    draw = torch.Generator(device).manual_seed(seed)
    return quantize_activation(torch.randn(m, k, generator=draw, device=device))


def apart(codes: Tensor, scales: Tensor, columns: int) -> Operand:
    """A product's operand (rows, K) with one scale for each row and ``columns``, as one with scales for 128: zeros
    follow each block, so that block sums are those of the small blocks, exactly."""
    rows, k = codes.shape
    blocks = pad(codes.view(torch.uint8), (0, -k % columns)).view(rows, -1, columns)
    return pad(blocks, (0, 128 - columns)).flatten(1).view(E4M3), scales.contiguous()


def check_folded(
    out: Tensor, a: Operand, b: Operand, folded: Operand, *, data: Data = "signed", blocks: Blocks = SMALL
) -> Report:
    """Hold a product of ``a`` (1x128) by ``folded`` to the float64 product of ``b``, which that was before: errors are
    measured by what was given, and what truncation may make of them by what was multiplied."""
    (n, k), columns = b[0].shape, blocks.columns
    of_rows = b[1].float().repeat_interleave(blocks.rows, 0)[:n]
    of_a = a[1].repeat_interleave(128 // columns, 1)[:, : -(-k // columns)]
    given = *apart(a[0], of_a, columns), *apart(b[0], of_rows, columns)
    return check(out, *given, data=data, multiplied=Inputs(*a, *folded))
