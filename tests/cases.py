"""Operands on which a wrong kernel shows: signed, all-positive and heavy-tailed values, and exact integers.

Every maker takes (m, n, k), a seed and a device; equal arguments give equal operands on one kind of device. Activation
scales are MN-major.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fp8gemm.quantize import quantize_activation, quantize_weight
from fp8gemm.scales import BLOCK, block_count, to_mn_major
from tests.numerics import Data, Report, check


@dataclass(frozen=True)
class Case:
    """Operands of one product, which gates they are for, and the seed that makes them again."""

    data: Data
    seed: int
    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.a, self.scales_a, self.b, self.scales_b

    def check(self, out: Tensor) -> Report:
        return check(out, *self.operands, data=self.data)

    def __str__(self) -> str:
        (m, k), n = self.a.shape, self.b.shape[0]
        return f"{self.data} data, M={m} N={n} K={k}, seed {self.seed}"


def fresh_seed() -> int:
    """A seed that no other run has; `str(case)` names it, and belongs in every failure message."""
    return random.SystemRandom().randrange(2**31)


def signed(m: int, n: int, k: int, *, seed: int, device: torch.device | str = "cpu") -> Case:
    """Normal values, every scale block of its own size within a factor of 16, so that no two scales are alike."""
    return _quantised("signed", lambda values: values, (m, n, k), seed, device)


def positive(m: int, n: int, k: int, *, seed: int, device: torch.device | str = "cpu") -> Case:
    """Absolute values of `signed`: nothing cancels, so lost low-order bits add up to a bias."""
    return _quantised("positive", torch.abs, (m, n, k), seed, device)


def heavy_tailed(m: int, n: int, k: int, *, seed: int, device: torch.device | str = "cpu") -> Case:
    """A few values per block dwarf the rest."""
    return _quantised("heavy", lambda values: values.pow(5), (m, n, k), seed, device)


def small_integers(m: int, n: int, k: int, *, seed: int, device: torch.device | str = "cpu") -> Case:
    """Codes -2..2, scales 2^-2..2^2: up to K = 16384 a partial sum is a multiple of 2^-4 below 2^20, exact in FP32."""
    draw = _Draw(seed, device)
    return Case(
        "exact",
        seed,
        draw.integers(-2, 2, m, k).to(torch.float8_e4m3fn),
        to_mn_major(draw.integers(-2, 2, m, block_count(k)).exp2()),
        draw.integers(-2, 2, n, k).to(torch.float8_e4m3fn),
        draw.integers(-2, 2, block_count(n), block_count(k)).exp2(),
    )


def distinct_scales(m: int, n: int, k: int, *, seed: int, device: torch.device | str = "cpu") -> Case:
    """Neighbouring scales are powers of two that differ, and each row has one K block that is not zero: a scale taken
    from any other place shows, exactly, as a wrong power of two.
    """
    draw = _Draw(seed, device)
    k_blocks, n_blocks = block_count(k), block_count(n)
    rows, columns = torch.arange(m, device=device)[:, None], torch.arange(k_blocks, device=device)
    of_block = columns.repeat_interleave(BLOCK)[:k]
    a = draw.integers(1, 3, m, k) * ((rows + seed) % k_blocks == of_block)
    n_rows = torch.arange(n_blocks, device=device)[:, None]
    return Case(
        "exact",
        seed,
        a.to(torch.float8_e4m3fn),
        to_mn_major(((5 * rows + 7 * columns) % 23 - 11.0).exp2()),
        draw.integers(1, 3, n, k).to(torch.float8_e4m3fn),
        ((3 * n_rows + 11 * columns) % 23 - 11.0).exp2(),
    )


class _Draw:
    """Random tensors from one seed, made on the device that they are for."""

    def __init__(self, seed: int, device: torch.device | str) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device = torch.device(device)

    def normal(self, rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=self.generator, device=self.device)

    def integers(self, low: int, high: int, rows: int, columns: int) -> Tensor:
        drawn = torch.randint(low, high + 1, (rows, columns), generator=self.generator, device=self.device)
        return drawn.to(torch.float32)

    def spread(self, rows: int, columns: int, rows_per_block: int) -> Tensor:
        """Normal values times 2^u, one u in -2..2 per block."""
        exponents = 4 * torch.rand(
            -(-rows // rows_per_block), block_count(columns), generator=self.generator, device=self.device
        )
        factors = (exponents - 2).exp2().repeat_interleave(rows_per_block, 0)[:rows]
        return self.normal(rows, columns) * factors.repeat_interleave(BLOCK, 1)[:, :columns]


def _quantised(
    data: Data,
    shape_values: Callable[[Tensor], Tensor],
    mnk: tuple[int, int, int],
    seed: int,
    device: torch.device | str,
) -> Case:
    m, n, k = mnk
    draw = _Draw(seed, device)
    a, scales_a = quantize_activation(shape_values(draw.spread(m, k, 1)))
    b, scales_b = quantize_weight(shape_values(draw.spread(n, k, BLOCK)))
    return Case(data, seed, a, scales_a, b, scales_b)
