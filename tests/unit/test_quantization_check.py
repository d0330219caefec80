"""The check of fused quantisers: the reference passes it, and whatever is a little wrong does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fp8gemm import reference
from fp8gemm.products.quantize import quantize_add_rms_norm, quantize_rms_norm, quantize_silu_mul
from tests.cases import fresh_seed
from tests.quantization import (
    Exact,
    check_fused,
    check_like_reference,
    exact_rms_norm,
    exact_silu_mul,
    round_to_e4m3,
)

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
VALUES = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rounding_to_e4m3() -> None:
    ties = (VALUES[1:] + VALUES[:-1]) / 2
    even = VALUES[1:].where(torch.arange(1, 127) % 2 == 0, VALUES[:-1])
    for sign in (1.0, -1.0):
        assert torch.equal(round_to_e4m3(sign * VALUES), sign * VALUES)
        assert torch.equal(round_to_e4m3(sign * ties), sign * even)
        assert torch.equal(round_to_e4m3(sign * ties * (1 + 2.0**-40)), sign * VALUES[1:])
        assert torch.equal(round_to_e4m3(sign * ties * (1 - 2.0**-40)), sign * VALUES[:-1])
    assert round_to_e4m3(torch.tensor([449.0, 1e300, -480.0]).double()).tolist() == [448, 448, -448]


@every_dtype
@pytest.mark.parametrize("size", [1.0, 30.0, 1e-3])
def test_the_reference_passes(size: float, dtype: torch.dtype) -> None:
    seed = fresh_seed()
    x = (size * drawn(33, 2 * 272, seed=seed)).to(dtype)
    check_fused(*quantize_silu_mul(x), exact_silu_mul(x), f"seed {seed}")
    for weight_dtype in DTYPES:
        weight = drawn(544, seed=seed + 1).to(weight_dtype)
        check_fused(*quantize_rms_norm(x, weight, eps=1e-5), exact_rms_norm(x, weight, 1e-5), f"seed {seed}")
        codes, scales, summed = quantize_add_rms_norm(x, x.flip(0), weight)
        check_fused(codes, scales, exact_rms_norm(summed, weight, 1e-6), f"seed {seed}")


@every_dtype
def test_special_rows_pass_too(dtype: torch.dtype) -> None:
    x = drawn(8, 544, seed=1)
    x[1, 3], x[2, 300], x[3], x[4], x[5] = torch.nan, torch.inf, 0.0, x[4] * 1e30, x[5] * 1e-30
    x = x.to(dtype)
    found = quantize_silu_mul(x)
    check_like_reference(found, found, exact_silu_mul(x))
    nowhere = found[0], found[1].nan_to_num(1.0)
    with pytest.raises(AssertionError, match="NaN scales"):
        check_like_reference(nowhere, found, exact_silu_mul(x))


Change = Callable[[Tensor, Tensor], object]
CHANGES: dict[str, Change] = {
    "a scale": lambda codes, scales: scales[3, 1].mul_(1 + 2.0**-15),
    "scales of a block's neighbour": lambda codes, scales: scales.copy_(scales.roll(1, 1)),
    "a code that is its neighbour": lambda codes, scales: codes.view(torch.uint8)[5, 40:140].bitwise_xor_(1),
    "rows exchanged": lambda codes, scales: codes.view(torch.uint8).copy_(codes.view(torch.uint8).roll(1, 0)),
    "a sign": lambda codes, scales: codes.view(torch.uint8)[5, :].bitwise_xor_(0x80),
    "NaN codes": lambda codes, scales: codes.view(torch.uint8)[0, 0].fill_(0x7F),
    "NaN scales": lambda codes, scales: scales[0, 0].fill_(torch.nan),
    "zero scales": lambda codes, scales: scales[0, 0].fill_(0.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_wrong_is_seen(change: Change) -> None:
    x = drawn(9, 544, seed=fresh_seed())
    codes, scales = quantize_silu_mul(x)
    check_fused(codes, scales, exact_silu_mul(x))
    change(codes, scales)
    with pytest.raises(AssertionError):
        check_fused(codes, scales, exact_silu_mul(x))


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves exchanged": lambda x: reference.silu_mul(x.roll(x.shape[1] // 2, 1)),
    "gelu": lambda x: torch.nn.functional.gelu(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1],
    "rounded on the way": lambda x: reference.silu_mul(x).bfloat16(),
    "1e-5 off": lambda x: reference.silu_mul(x) * (1 + 1e-5),
}


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
def test_another_formula_is_seen(formula: Callable[[Tensor], Tensor]) -> None:
    x = drawn(64, 2048, seed=fresh_seed())
    with pytest.raises(AssertionError):
        check_fused(*reference.quantize_rows(formula(x)), exact_silu_mul(x))


def test_a_norm_without_its_eps_or_its_mean_is_seen() -> None:
    x, weight = drawn(64, 2048, seed=fresh_seed()) * 1e-2, torch.ones(2048)
    for wrong in (reference.rms_norm(x, weight, 0.0), reference.rms_norm(x - x.mean(1, keepdim=True), weight, 1e-6)):
        with pytest.raises(AssertionError):
            check_fused(*reference.quantize_rows(wrong), exact_rms_norm(x, weight, 1e-6))


def test_what_is_not_finite_is_for_the_other_check() -> None:
    with pytest.raises(AssertionError, match="not finite"):
        check_fused(*reference.quantize_rows(torch.ones(1, 16)), Exact(torch.full((1, 16), torch.inf), torch.zeros(1)))


@every_dtype
def test_the_reference_takes_rows_of_any_pitch(dtype: torch.dtype) -> None:
    x = drawn(8, 1024, seed=fresh_seed()).to(dtype)
    for same in (x[2:3, :512].expand(6, 512), x[::2, 3:515], x.view(-1).as_strided((9, 512), (16, 1))):
        for quantise in (reference.quantize_rows, reference.quantize_blocks):
            for found, expected in zip(quantise(same), quantise(same.contiguous()), strict=True):
                assert found.is_contiguous() and torch.equal(found.float(), expected.float())
