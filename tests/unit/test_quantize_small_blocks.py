"""Weights quantised in smaller blocks than 128x128: scales are the least powers of two, and codes the nearest."""

from __future__ import annotations

import pytest
import torch

import fp8gemm
from fp8gemm.reference import folding
from fp8gemm.scales import Blocks
from tests.cases import fresh_seed
from tests.folding import values
from tests.quantization import round_to_e4m3


@pytest.mark.parametrize("blocks", [(32, 32), (1, 32), (64, 128)])
@pytest.mark.parametrize(("n", "k"), [(1, 16), (32, 32), (70, 144), (200, 272)])
def test_scales_are_the_least_powers_and_codes_the_nearest(n: int, k: int, blocks: tuple[int, int]) -> None:
    seed = fresh_seed()
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(n, k, generator=draw) * torch.randint(-20, 20, (n, 1), generator=draw).float().exp2()
    codes, scales = fp8gemm.quantize_weight(w, block_size=blocks)
    assert scales.shape == Blocks(*blocks).counts(n, k) and codes.is_contiguous() and scales.is_contiguous()
    assert folding.are_powers(scales).all()
    unit = values(torch.ones(n, k).to(codes.dtype), scales, Blocks(*blocks))
    assert (w.abs() <= 448 * unit).all(), f"seed {seed}"
    largest = torch.zeros_like(scales).double()
    rows = torch.arange(n)[:, None].expand(n, k) // blocks[0]
    columns = torch.arange(k).expand(n, k) // blocks[1]
    largest.view(-1).scatter_reduce_(
        0, (rows * scales.shape[1] + columns).flatten(), w.abs().double().flatten(), "amax"
    )
    assert (largest > 224 * scales).all(), "a scale of half would do"
    assert torch.equal(codes.double(), round_to_e4m3(w.double() / unit)), f"seed {seed}"


def test_whole_and_empty_ranges() -> None:
    w = torch.zeros(64, 64)
    w[0, 0], w[0, 32], w[32, 0] = 448.0, 448.0 * (1 + 2.0**-20), 2.0**-140
    _, scales = fp8gemm.quantize_weight(w, block_size=(32, 32))
    assert scales.tolist() == [[1.0, 2.0], [2.0**-126, 1.0]]
    w[0, 0], w[0, 32] = torch.nan, torch.inf
    codes, scales = fp8gemm.quantize_weight(w, block_size=(32, 32))
    assert scales[0].isnan().tolist() == [True, False] and scales[0, 1] == torch.inf
    assert codes.float()[0, [0, 32]].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_and_the_default(dtype: torch.dtype) -> None:
    w = torch.randn(100, 160, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    codes, scales = fp8gemm.quantize_weight(w, block_size=(32, 32))
    same = fp8gemm.quantize_weight(w.detach().float(), block_size=(32, 32))
    assert torch.equal(codes.float(), same[0].float()) and torch.equal(scales, same[1]) and not codes.requires_grad
    for block_size in ((128, 128), [128, 128]):
        codes, scales = fp8gemm.quantize_weight(w.detach(), block_size=block_size)  # type: ignore[arg-type]
        assert torch.equal(scales, fp8gemm.quantize_weight(w.detach())[1]) and scales.shape == (1, 2)


@pytest.mark.parametrize("block_size", [(0, 32), (32, 33), (32,), None, "32x32", (32.0, 32.0), (True, 32)])
def test_other_block_sizes(block_size: object) -> None:
    with pytest.raises(fp8gemm.InputError, match=r"^block_size: expected two divisors of 128, as \(32, 32\), got"):
        fp8gemm.quantize_weight(torch.ones(32, 32), block_size=block_size)  # type: ignore[arg-type]
    with pytest.raises(fp8gemm.InputError, match="^w: expected .* K a positive multiple of 16"):
        fp8gemm.quantize_weight(torch.ones(32, 24), block_size=(32, 32))
