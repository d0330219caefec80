"""Random operands of grouped products, many of them, and what their products must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from fp8gemm.kernels.stream import StreamKernel
from fp8gemm.lab.bench.graph import check_result
from fp8gemm.lab.bench.operands import Call, normal
from fp8gemm.lab.bench.peers import read_weight
from fp8gemm.lab.bench.quantize_cases import dequantized
from fp8gemm.products.quantize import quantize_activation, quantize_weight
from fp8gemm.scales import block_count
from fp8gemm.sizes import SCALE_BLOCK

Scaled = tuple[Tensor, Tensor]
"""FP8 codes and their multipliers."""
FLOOR = "floor"
"""What only reads weights, in the table and the JSON."""


@dataclass(frozen=True)
class Contender:
    """One way to compute what is measured.

    Attributes:
        prepare: makes one call for each set of operands.
        check: raises `WrongResultError` unless the first call's result is right; None for one that computes nothing.
    """

    prepare: Callable[[], Sequence[Call]]
    check: Callable[[Tensor], None] | None = None


@dataclass(frozen=True)
class Work:
    """What takes turns.

    Attributes:
        contenders: by name.
        sets: calls that each of them makes.
        flops: of one call.
        weight_bytes: FP8 weights that one call reads.
    """

    contenders: Mapping[str, Contender]
    sets: int
    flops: int
    weight_bytes: int


def random_rows(generator: torch.Generator, rows: int, k: int) -> Scaled:
    """(rows, K), scaled 1x128, MN-major."""
    return quantize_activation(normal(generator, rows, k))


def random_masked(generator: torch.Generator, max_m: int, k: int, counts: Tensor) -> Scaled:
    """(G, max_m, K), scaled 1x128, MN-major in each group."""
    return quantize_activation(normal(generator, counts.shape[0], max_m, k), counts=counts)


def random_weights(generator: torch.Generator, groups: int, n: int, k: int) -> Scaled:
    """(G, N, K), scaled 128x128: made one group at a time, because in bfloat16 all of them are large."""
    device = generator.device
    codes = torch.empty((groups, n, k), dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty((groups, block_count(n), block_count(k)), dtype=torch.float32, device=device)
    for group in range(groups):
        for whole, part in zip((codes, scales), quantize_weight(normal(generator, n, k)), strict=True):
            whole[group].copy_(part)
    return codes, scales


def offsets_of(sizes: Iterable[int], device: torch.device) -> Tensor:
    """(G + 1,) int32 sums of sizes, from 0."""
    return torch.tensor(list(accumulate(sizes, initial=0)), dtype=torch.int32, device=device)


def indices_of(sizes: Sequence[int], device: torch.device) -> Tensor:
    """(M,) int32, the group of each row."""
    groups = torch.arange(len(sizes), dtype=torch.int32, device=device)
    return groups.repeat_interleave(torch.tensor(sizes, device=device))


def in_bfloat16(codes: Tensor, scales: Tensor) -> Tensor:
    """(R, K) codes times scales of rows, (R, K blocks), or of 128x128 blocks."""
    rows_per_scale = 1 if scales.shape[0] == codes.shape[0] else SCALE_BLOCK
    return dequantized(codes, scales, rows_per_scale=rows_per_scale).bfloat16()


def product(a: Scaled, b: Scaled) -> Tensor:
    """(M, N) bfloat16: what the codes and scales of (M, K) and (N, K) stand for, multiplied."""
    return torch.mm(in_bfloat16(*a), in_bfloat16(*b).t())


def group_of(weights: Scaled, group: int) -> Scaled:
    """One group's weight."""
    return weights[0][group], weights[1][group]


def check_groups(results: Iterable[Tensor], rows: Iterable[Scaled], weights: Iterable[Scaled]) -> None:
    """Compare each group's result with the product of what its operands stand for: a wrong one hides behind no other.

    Raises:
        WrongResultError: a group is off.
    """
    for group, (result, a, b) in enumerate(zip(results, rows, weights, strict=True)):
        if result.numel():
            check_result(result, product(a, b), f"the product of dequantised operands, in group {group},")


def reading(weights: Sequence[Scaled], touched: int) -> list[Call]:
    """Reads as many groups' weights as have rows, other ones in each call if there are more."""
    groups, n, k = weights[0][0].shape
    kernel = StreamKernel(touched * n, k, device_index=weights[0][0].device.index)

    firsts = [index * touched % (groups - touched + 1) for index in range(len(weights))]
    return [
        partial(read_weight, kernel, codes[first : first + touched].flatten(0, 1))
        for first, (codes, _) in zip(firsts, weights, strict=True)
    ]
