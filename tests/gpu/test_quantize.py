"""Quantisation on the GPU is bitwise what it is on the CPU, where `tests/unit` holds it to the formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.benchmark.peers import relative_error
from fp8gemm.quantize import quantize_activation, quantize_weight
from fp8gemm.reference import dequantize_activation, dequantize_weight
from tests.numerics import check

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [(0, 128), (1, 16), (7, 112), (65, 272), (333, 7168), (129, 2048)]


def assert_same(on_gpu: tuple[Tensor, Tensor], on_cpu: tuple[Tensor, Tensor], context: str) -> None:
    for gpu, cpu in zip(on_gpu, on_cpu, strict=True):
        assert gpu.shape == cpu.shape and gpu.stride() == cpu.stride() and gpu.dtype == cpu.dtype, context
    codes, scales = on_gpu[0].cpu(), on_gpu[1].cpu()
    nan = codes.float().isnan()
    assert torch.equal(nan, on_cpu[0].float().isnan()), context
    assert torch.equal(codes.view(torch.uint8)[~nan], on_cpu[0].view(torch.uint8)[~nan]), context
    assert torch.equal(scales.nan_to_num(-1.0, math.inf), on_cpu[1].nan_to_num(-1.0, math.inf)), context


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), SHAPES)
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-37, 1e30])
def test_same_bits_as_on_the_cpu(rows, k, size, dtype, device, generator):
    """Tiny blocks too: a GPU that flushed subnormals to zero or divided by a reciprocal would differ."""
    x = (torch.randn(rows, k, generator=generator, device=device) * size).to(dtype)
    x = x.nan_to_num(0.0, 0.0, 0.0)  # float16 has no 1e30
    for layout in ("mn_major", "row_major"):
        on_gpu = quantize_activation(x, scale_layout=layout)
        assert_same(on_gpu, quantize_activation(x.cpu(), scale_layout=layout), f"{dtype}, {layout}")
    assert_same(quantize_weight(x), quantize_weight(x.cpu()), f"{dtype}")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_as_on_the_cpu(bad, device, generator):
    x = torch.randn(200, 400, generator=generator, device=device)
    x[150, 300], x[3] = bad, 0.0
    assert_same(quantize_activation(x), quantize_activation(x.cpu()), f"{bad}")
    assert_same(quantize_weight(x), quantize_weight(x.cpu()), f"{bad}")


def test_strided_rows_and_graph_capture(device, generator):
    storage = torch.randn(65, 600, generator=generator, device=device)
    x = storage[:, 40:552]
    expected = quantize_activation(x.cpu())
    quantize_activation(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = quantize_activation(x)
    graph.replay()
    assert_same(captured, expected, "captured")


@pytest.mark.parametrize(("m", "n", "k"), [(1, 2112, 7168), (64, 7168, 2048), (333, 577, 272)])
def test_quantise_multiply_and_compare(m, n, k, device, generator):
    """The library's whole path: against the dequantised product tightly, the unquantised one by quantisation noise."""
    x = torch.randn(m, k, generator=generator, device=device).bfloat16()
    w = torch.randn(n, k, generator=generator, device=device).bfloat16()
    (xq, xs), (wq, ws) = fp8gemm.quantize_activation(x), fp8gemm.quantize_weight(w)
    out = fp8gemm.gemm(xq, xs, wq, ws)
    check(out, xq, xs, wq, ws).raise_if_failed(f"M={m} N={n} K={k}")
    dequantised = dequantize_activation(xq, xs, dtype=torch.float64) @ dequantize_weight(wq, ws, dtype=torch.float64).T
    unquantised = x.double() @ w.double().T
    assert relative_error(out, dequantised) < 2.5e-3
    assert 0.01 < relative_error(out, unquantised) < 0.06
