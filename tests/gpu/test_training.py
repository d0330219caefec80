"""Layers that are trained, on a Hopper GPU: each of the three products by the gates of kernels, and whole steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import fp8gemm
from fp8gemm import settings
from fp8gemm.nn import Fp8TrainingLinear
from fp8gemm.reference import quantize_blocks, quantize_rows
from tests.calls import same_bits
from tests.numerics import check

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SIZES = [(4096, 2112, 1536), (1024, 576, 7168), (333, 144, 272), (7, 16, 400), (1, 128, 16)]
"""M, N, K: many tiles, long sums, tails everywhere, and few rows."""


def layer_for(
    n: int, k: int, generator: torch.Generator, *, dtype: torch.dtype = FP32, bias: bool = True
) -> Fp8TrainingLinear:
    layer = Fp8TrainingLinear(k, n, bias, generator.device, dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=k**-0.5, generator=generator)
    return layer


def normal(*shape: int, generator: torch.Generator, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)


def step(layer: Fp8TrainingLinear, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The output, and the gradients of x, weight and bias."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y = layer(x)
    y.backward(dy)
    assert x.grad is not None and layer.weight.grad is not None
    return y.detach(), x.grad, layer.weight.grad, None if layer.bias is None else layer.bias.grad


@pytest.mark.parametrize(("dtype", "of_weight"), [(BF16, FP32), (BF16, BF16), (FP16, FP16), (FP32, FP32)], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_each_product_is_right_for_what_was_quantised(
    m: int, n: int, k: int, dtype: torch.dtype, of_weight: torch.dtype, generator: torch.Generator
) -> None:
    layer = layer_for(n, k, generator, dtype=of_weight)
    x, dy = (normal(m, columns, generator=generator, dtype=dtype) for columns in (k, n))
    y, dx, dw, dbias = step(layer, x, dy)
    assert [each.dtype for each in (y, dx, dw)] == [dtype, dtype, of_weight]
    assert layer.bias is not None and dbias is not None
    weight, bias = layer.weight.detach(), layer.bias.detach()
    added = bias.float() if of_weight is FP16 else bias
    sizes = f"{m} x {n} x {k}, {dtype}, {of_weight}"
    check(y, *quantize_rows(x), *quantize_blocks(weight), bias=added).raise_if_failed(f"y, {sizes}")
    check(dx, *quantize_rows(dy), *quantize_blocks(weight.t())).raise_if_failed(f"dx, {sizes}")
    check(dw, *quantize_rows(dy.t()), *quantize_rows(x.t())).raise_if_failed(f"dW, {sizes}")
    assert torch.allclose(dbias.double(), dy.double().sum(0), rtol=2.0**-7, atol=1e-3 * m**0.5)


@pytest.mark.parametrize(("m", "n", "k"), [(2048, 1024, 512), (200, 144, 272), (37, 16, 400)])
def test_whole_numbers_are_exact(m: int, n: int, k: int, generator: torch.Generator) -> None:
    """-7 to 7 with a 7 in each run of 16, so that scales are 2^-6; sums of these fit the accumulators."""

    def numbers(rows: int, columns: int) -> Tensor:
        found = torch.randint(-7, 8, (rows, columns), generator=generator, device=generator.device).float()
        rows_of, columns_of = (torch.arange(size, device=generator.device) for size in (rows, columns))
        return found.masked_fill((rows_of[:, None] - columns_of) % 16 == 0, 7.0)

    layer, x, dy = layer_for(n, k, generator, bias=False), numbers(m, k), numbers(m, n)
    with torch.no_grad():
        layer.weight.copy_(numbers(n, k))
    right = [each.double() for each in (x, layer.weight.detach(), dy)]
    y, dx, dw, _ = step(layer, x, dy)
    for found, expected in ((y, right[0] @ right[1].t()), (dx, right[2] @ right[1]), (dw, right[2].t() @ right[0])):
        assert torch.equal(found.double(), expected)


@pytest.mark.parametrize("m", [1024, 333])
def test_gradients_are_those_of_float32_but_for_what_quantising_costs(m: int, generator: torch.Generator) -> None:
    layer = layer_for(576, 1536, generator)
    x, dy = normal(m, 1536, generator=generator), normal(m, 576, generator=generator)
    found = step(layer, x, dy)
    exact = x.double().requires_grad_(), layer.weight.detach().double().requires_grad_()
    right = functional.linear(*exact, layer.bias.detach().double())
    right.backward(dy.double())
    for one, other in zip(found, (right.detach(), exact[0].grad, exact[1].grad), strict=False):
        assert one is not None and other is not None
        assert 1e-2 < (one.double() - other).norm() / other.norm() < 4.5e-2


def test_a_step_has_the_same_bits_again_and_compiled(generator: torch.Generator) -> None:
    layer = layer_for(576, 512, generator)
    x, dy = normal(333, 512, generator=generator), normal(333, 576, generator=generator)
    first = step(layer, x, dy)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    layer.zero_grad()
    leaf = x.detach().requires_grad_()
    compiled(leaf).backward(dy)
    for again in (step(layer, x, dy), (first[0], leaf.grad, layer.weight.grad, first[3])):
        for one, other in zip(again, first, strict=True):
            assert one is not None and other is not None and same_bits(one, other)


@pytest.mark.parametrize("bias", [True, False])
def test_a_step_compiles_nothing_after_a_warmup(bias: bool, generator: torch.Generator, tmp_path: Path) -> None:
    layer = layer_for(272, 528, generator, bias=bias)
    x, dy = normal(301, 528, generator=generator), normal(301, 272, generator=generator)
    with settings.scope(cache_dirs=(tmp_path / "kernels",)):
        fp8gemm.warmup(torch.nn.Sequential(layer), 301)
        with settings.scope(jit="error"):
            y, dx, dw, _ = step(layer, x, dy)
    assert all(bool(each.isfinite().all()) for each in (y, dx, dw))
