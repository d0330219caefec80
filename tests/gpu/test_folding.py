"""Weights with scales of 32x32 blocks on a Hopper GPU: folded as on the CPU, and multiplied by as what they were."""

from __future__ import annotations

import pytest
import torch

import fp8gemm
import fp8gemm.integrations.deep_gemm as deep_gemm
from fp8gemm.nn import Fp8Linear
from fp8gemm.products.folding import MOST_ERROR
from tests import folding
from tests.numerics import Data

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ROWS = (1, 7, 64, 512, 1025)
SHAPES = [(2112, 7168), (576, 512), (136, 1040), (33, 496)]
DATA: dict[str, Data] = {"normal": "signed", "channels": "heavy", "positive": "heavy", "heavy": "heavy"}
"""How products are judged. Where codes of one block differ so much, tensor cores drop more than of normal values. What
folding alone drops is held to stricter gates with exact sums: tests/unit/test_folding.py."""


def operands(
    m: int, n: int, k: int, most: int, kind: str, generator: torch.Generator
) -> tuple[folding.Operand, folding.Operand]:
    device = generator.device
    seed = int(torch.randint(2**31, (), generator=generator, device=device))
    codes, scales = folding.weight(n, k, most, seed=seed, device=device)
    scales[:, 1] = 2.0**-most  # a column of blocks that all lose most
    x = torch.randn(m, k, generator=generator, device=device)
    if kind == "channels":  # where these alone count
        x[:, 32:64] *= 2.0**12
    elif kind == "positive":
        x, codes = x.abs(), codes.float().abs().to(codes.dtype)
    elif kind == "heavy":
        x = x.pow(5)
    return fp8gemm.quantize_activation(x), (codes, scales)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_products_are_those_of_what_was_given(
    n: int, k: int, kind: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    for m, most in zip(ROWS, (5, 1, 3, 5, 4), strict=True):
        a, b = operands(m, n, k, most, kind, generator)
        # NOTE: blocks of a few rows or columns may be past the bound, which is for 1024 values, by chance.
        folded = fp8gemm.fold_scales(*b, requantize=True)
        # So that float16 holds the sums of large channels.
        b, multiplied = (b[0], b[1] * 2.0**-9), (folded.codes, folded.scales * 2.0**-9)
        out = fp8gemm.gemm(*a, *multiplied, out_dtype=dtype)
        assert out.isfinite().all()
        report = folding.check_folded(out, a, b, multiplied, data=DATA[kind])
        report.raise_if_failed(f"{m} x {n} x {k}, 2^{most}, {kind}, {folded}")


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("most", [0, 5, 12])
def test_a_gpu_folds_as_the_cpu_does(n: int, k: int, most: int, generator: torch.Generator) -> None:
    codes, scales = folding.weight(n, k, most, seed=generator.initial_seed() % 2**31, device=generator.device)
    codes.view(torch.uint8)[n // 2, k // 2] = 0x7F
    for of_scales in (scales, scales * 1.25):
        here = fp8gemm.fold_scales(codes, of_scales, requantize=True)
        there = fp8gemm.fold_scales(codes.cpu(), of_scales.cpu(), requantize=True)
        assert here.codes.device == codes.device and here.scales.device == codes.device
        assert torch.equal(here.codes.float().nan_to_num(500).cpu(), there.codes.float().nan_to_num(500))
        assert torch.equal(here.scales.cpu(), there.scales) and here.largest_shift == there.largest_shift
        assert here.error == pytest.approx(there.error, rel=1e-5)


@pytest.mark.parametrize("block_size", [(32, 32), (1, 32)])
def test_a_gpu_quantises_small_blocks_as_the_cpu_does(block_size: tuple[int, int], generator: torch.Generator) -> None:
    w = torch.randn(333, 528, generator=generator, device=generator.device).pow(3)
    here = fp8gemm.quantize_weight(w, block_size=block_size)
    there = fp8gemm.quantize_weight(w.cpu(), block_size=block_size)
    assert all(torch.equal(x.float().cpu(), y.float()) for x, y in zip(here, there, strict=True))


def test_a_layer_and_deep_gemms_recipe(generator: torch.Generator) -> None:
    (a, scales_a), b = operands(300, 576, 512, 4, "normal", generator)
    layer = Fp8Linear.from_quantized(*b, block_size=(32, 32), max_m=512)
    out = layer.forward_quantized(a, scales_a)
    folding.check_folded(out, (a, scales_a), b, (layer.weight, layer.weight_scale_inv)).raise_if_failed()
    x = torch.randn(300, 512, generator=generator, device=generator.device)
    of_rows = fp8gemm.quantize_weight(x, block_size=(1, 32))
    once = fp8gemm.fold_scales(*of_rows, block_size=(1, 32), requantize=True)
    assert once.error <= MOST_ERROR, once
    d = torch.full((300, 576), torch.nan, dtype=BF16, device=generator.device)
    deep_gemm.fp8_gemm_nt(of_rows, b, d, recipe=(1, 32, 32))
    assert torch.equal(d, layer.forward_quantized(once.codes, once.scales))


def test_the_recipe_is_refused_in_a_graph(generator: torch.Generator) -> None:
    _, b = operands(1, 576, 512, 4, "normal", generator)
    a = fp8gemm.quantize_weight(torch.randn(64, 512, generator=generator, device=generator.device), block_size=(1, 32))
    d = torch.zeros(64, 576, dtype=BF16, device=generator.device)
    refused = pytest.raises(fp8gemm.UnsupportedError, match="while a CUDA graph is captured")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        deep_gemm.fp8_gemm_nt(a, b, d, recipe=(1, 32, 32))
    assert not d.any()
