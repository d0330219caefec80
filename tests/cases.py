"""Operands on which a wrong kernel shows: signed, all-positive and heavy-tailed values, and exact integers.

Every maker takes (m, n, k) and, by name, `seed`, `device`, `scaling` (how B is scaled: `Scaling.BLOCK` or `ROW`), and
the dtypes of C and of the bias, `c` and `bias`, None for none. Equal arguments give equal operands on one kind of
device, and the operands of a product are the same with C and bias as without. Scales of rows are MN-major.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fp8gemm.products.quantize import quantize_activation, quantize_weight
from fp8gemm.scales import block_count, to_mn_major
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.problem import Scaling
from tests.numerics import Data, Report, check

SCALE_DTYPES = [getattr(torch, name) for name in ("float32", "bfloat16", "float8_e8m0fnu") if hasattr(torch, name)]
"""What checkpoints have scales in; torch has float8_e8m0fnu since 2.7."""


@dataclass(frozen=True)
class Case:
    """Operands of one product, what its epilogue adds, which gates they are for, and the seed that makes them again."""

    data: Data
    seed: int
    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor
    c: Tensor | None = None
    bias: Tensor | None = None

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.a, self.scales_a, self.b, self.scales_b

    @property
    def epilogue(self) -> dict[str, Tensor]:
        """C and the bias by the names of the arguments that take them, without the one that is None."""
        return {name: term for name, term in (("c", self.c), ("bias", self.bias)) if term is not None}

    @property
    def scaling(self) -> Scaling:
        """How B is scaled; `SCALE_BLOCK` where N is one and both are the same."""
        n = self.b.shape[0]
        return Scaling.ROW if n > 1 and self.scales_b.shape[0] == n else Scaling.BLOCK

    def check(self, out: Tensor) -> Report:
        return check(out, *self.operands, data=self.data, c=self.c, bias=self.bias)

    def __str__(self) -> str:
        (m, k), n = self.a.shape, self.b.shape[0]
        terms = "".join(f", {name} {str(term.dtype).removeprefix('torch.')}" for name, term in self.epilogue.items())
        return f"{self.data} data, M={m} N={n} K={k}, {self.scaling.value}{terms}, seed {self.seed}"


def fresh_seed() -> int:
    """A seed that no other run has; `str(case)` names it, and belongs in every failure message."""
    return random.SystemRandom().randrange(2**31)


def signed(m: int, n: int, k: int, **options: Any) -> Case:
    """Normal values, every scale block of its own size within a factor of 16, so that no two scales are alike."""
    return _quantised("signed", lambda values: values, m, n, k, **options)


def positive(m: int, n: int, k: int, **options: Any) -> Case:
    """Absolute values of `signed`: nothing cancels, so lost low-order bits add up to a bias."""
    return _quantised("positive", torch.abs, m, n, k, **options)


def heavy_tailed(m: int, n: int, k: int, **options: Any) -> Case:
    """A few values per block dwarf the rest."""
    return _quantised("heavy", lambda values: values.pow(5), m, n, k, **options)


def small_integers(
    m: int,
    n: int,
    k: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    scaling: Scaling = Scaling.BLOCK,
    c: torch.dtype | None = None,
    bias: torch.dtype | None = None,
) -> Case:
    """Codes -2..2, scales 2^-2..2^2: up to K = 16384 a partial sum is a multiple of 2^-4 below 2^20, exact in FP32.

    C and the bias are integers -64..64, exact in bfloat16, and within that room up to K = 16368.
    """
    draw = _Draw(seed, device)
    return Case(
        "exact",
        seed,
        draw.integers(-2, 2, m, k).to(torch.float8_e4m3fn),
        to_mn_major(draw.integers(-2, 2, m, block_count(k)).exp2()),
        draw.integers(-2, 2, n, k).to(torch.float8_e4m3fn),
        _laid_out(draw.integers(-2, 2, _scale_rows(n, scaling), block_count(k)).exp2(), scaling),
        None if c is None else draw.integers(-64, 64, m, n).to(c),
        None if bias is None else draw.integers(-64, 64, 1, n)[0].to(bias),
    )


def put_special(case: Case, special: float) -> None:
    """Into scales of single rows and blocks, of B's first row the 66th and 98th; and NaN among the codes of a row."""
    m, k = case.a.shape
    case.scales_b[1, 0] = special
    case.scales_b[0, 65:98:32] = special
    case.scales_a[m - 1, -1] = case.scales_a[m - 2, k // 256] = special
    case.a[3, k - 1] = float("nan")


def distinct_scales(
    m: int,
    n: int,
    k: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    scaling: Scaling = Scaling.BLOCK,
    c: torch.dtype | None = None,
    bias: torch.dtype | None = None,
) -> Case:
    """Neighbouring scales are powers of two that differ, and each row has one K block that is not zero: a scale taken
    from any other place shows, exactly, as a wrong power of two.

    Two scales of one K block are alike only if a multiple of 23 rows lies between them, and so is never one 128, 64, 16
    or 8 rows away. Raises ValueError for C or a bias, beside which such sums would not be exact in FP32.
    """
    if c is not None or bias is not None:
        raise ValueError("distinct_scales: expected no C and no bias, because the sum with them would be inexact")
    draw = _Draw(seed, device)
    k_blocks, n_scales = block_count(k), _scale_rows(n, scaling)
    rows, columns = torch.arange(m, device=device)[:, None], torch.arange(k_blocks, device=device)
    of_block = columns.repeat_interleave(SCALE_BLOCK)[:k]
    a = draw.integers(1, 3, m, k) * ((rows + seed) % k_blocks == of_block)
    n_rows = torch.arange(n_scales, device=device)[:, None]
    return Case(
        "exact",
        seed,
        a.to(torch.float8_e4m3fn),
        to_mn_major(((5 * rows + 7 * columns) % 23 - 11.0).exp2()),
        draw.integers(1, 3, n, k).to(torch.float8_e4m3fn),
        _laid_out(((3 * n_rows + 11 * columns) % 23 - 11.0).exp2(), scaling),
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
        return self.normal(rows, columns) * factors.repeat_interleave(SCALE_BLOCK, 1)[:, :columns]


def _quantised(
    data: Data,
    shape_values: Callable[[Tensor], Tensor],
    m: int,
    n: int,
    k: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    scaling: Scaling = Scaling.BLOCK,
    c: torch.dtype | None = None,
    bias: torch.dtype | None = None,
) -> Case:
    draw = _Draw(seed, device)
    values_a = shape_values(draw.spread(m, k, 1))
    values_b = shape_values(draw.spread(n, k, _rows_per_scale(scaling)))
    a, scales_a = quantize_activation(values_a)
    b, scales_b = (quantize_weight if scaling is Scaling.BLOCK else quantize_activation)(values_b)
    case = Case(data, seed, a, scales_a, b, scales_b)
    if c is None and bias is None:
        return case
    # C is as large as the product is on average over its row and its column, and the bias as over its column.
    size_a, size_b = (_row_sizes(data, values) for values in (values_a, values_b))
    draw_term = draw.normal if data != "positive" else lambda rows, columns: draw.normal(rows, columns).abs()
    if c is not None:
        case = replace(case, c=(draw_term(m, n) * torch.outer(size_a, size_b)).to(c))
    if bias is not None:
        case = replace(case, bias=(draw_term(1, n)[0] * size_b * (size_a.sum() / max(m, 1))).to(bias))
    return case


def _row_sizes(data: Data, values: Tensor) -> Tensor:
    """For each row a size such that elements of a product are about as large as the sizes' product."""
    k = values.shape[1]
    sizes: Tensor
    if data == "positive":  # K terms add up to K times their mean, and to sqrt(K) where signs cancel
        sizes = values.abs().mean(dim=1) * k**0.5
    else:
        sizes = values.square().mean(dim=1).sqrt() * k**0.25
    return sizes


def _rows_per_scale(scaling: Scaling) -> int:
    return SCALE_BLOCK if scaling is Scaling.BLOCK else 1


def _scale_rows(n: int, scaling: Scaling) -> int:
    return -(-n // _rows_per_scale(scaling))


def _laid_out(scales_b: Tensor, scaling: Scaling) -> Tensor:
    """Scales of blocks row-major, those of rows MN-major, as kernels read them in place."""
    return scales_b if scaling is Scaling.BLOCK else to_mn_major(scales_b)
