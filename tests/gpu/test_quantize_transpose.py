"""A matrix and its transpose, quantised in one launch: the bits that the CPU gives, and no others however often."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.driver.current import current_stream
from fp8gemm.kernels.loaded import quantizer_for
from fp8gemm.kernels.quantize import quantizer_with_transpose
from fp8gemm.products.quantize import quantize_activation, quantize_with_transpose
from fp8gemm.scales import block_count, mn_major_pitch
from fp8gemm.tuning.problem import InputType
from tests.calls import bits, same_bits
from tests.gpu.test_quantize import DTYPES, around_ties, assert_same
from tests.numerics import check

SHAPES = [(0, 128), (1, 16), (7, 112), (16, 128), (65, 272), (333, 7168), (4096, 2112)]
LAUNCHES = 2000


def assert_both_same(on_gpu: tuple[Tensor, ...], x: Tensor, context: str) -> None:
    on_cpu = quantize_with_transpose(x.cpu())
    assert_same((on_gpu[0], on_gpu[1]), (on_cpu[0], on_cpu[1]), context)
    assert_same((on_gpu[2], on_gpu[3]), (on_cpu[2], on_cpu[3]), f"transpose of {context}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), SHAPES)
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-37])
def test_same_bits_as_on_the_cpu(rows, k, size, dtype, device, generator):
    x = (torch.randn(rows, k, generator=generator, device=device) * size).to(dtype)
    found = quantize_with_transpose(x)
    assert_both_same(found, x, f"{dtype}")
    alone = quantize_activation(x)
    assert all(map(same_bits, found[:2], alone))


@pytest.mark.parametrize("dtype", DTYPES)
def test_true_division_at_and_beside_every_tie_of_rows_and_of_columns(dtype, device, seed):
    x = around_ties(seed).to(dtype)
    x = x.where(x.isfinite(), 0)
    for each in (x, x.T.contiguous()):
        each = each[:, : each.shape[1] // 16 * 16].contiguous()
        assert_both_same(quantize_with_transpose(each.to(device)), each, f"{dtype}")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_as_on_the_cpu(bad, device, generator):
    x = torch.randn(200, 400, generator=generator, device=device)
    x[150, 300], x[3] = bad, 0.0
    assert_both_same(quantize_with_transpose(x), x, f"{bad}")


def test_strided_rows_and_graph_capture(device, generator):
    storage = torch.randn(65, 600, generator=generator, device=device)
    x = storage[:, 40:552]
    quantize_with_transpose(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = quantize_with_transpose(x)
    graph.replay()
    assert_both_same(captured, x, "captured")


def test_nothing_around_the_outputs_is_written_and_all_launches_give_the_same(device, generator):
    """Each into memory of its own that is poisoned, with as much before and behind it."""
    m, k = 1003, 656
    width, blocks = -(-m // 128) * 128, (block_count(k), block_count(m))
    sizes = m * k, 4 * blocks[0] * mn_major_pitch(m), k * width, 4 * blocks[1] * mn_major_pitch(k)
    x = torch.randn(m, k, generator=generator, device=device).bfloat16()
    expected = quantize_with_transpose(x)
    kernel = quantizer_for(quantizer_with_transpose(InputType.BFLOAT16), device.index)
    guard, wrong = 4096, torch.zeros((), dtype=torch.int64, device=device)
    memory = [torch.empty(guard + size + guard, dtype=torch.uint8, device=device) for size in sizes]
    inside = [each[guard : guard + size] for each, size in zip(memory, sizes, strict=True)]
    codes, of_transpose = inside[0].view(m, k), inside[2].view(k, width)
    scales = inside[1].view(torch.float32).view(blocks[0], -1)
    their_scales = inside[3].view(torch.float32).view(blocks[1], -1)
    found = codes, scales.t()[:m], of_transpose, their_scales.t()[:k]
    for _ in range(LAUNCHES):
        for each in memory:
            each.fill_(0xFF)
        kernel.bind(x, *found[:2], stream=current_stream(device.index), transpose=found[2:])()
        for mine, right in zip(found, expected, strict=True):
            wrong += (bits(mine) != bits(right)).sum()
        for each in memory:
            wrong += (each[:guard] != 0xFF).sum() + (each[-guard:] != 0xFF).sum()
        wrong += (bits(scales[:, m:]) != 0xFF).sum()
    assert int(wrong) == 0


@pytest.mark.parametrize(("m", "n", "k"), [(64, 256, 400), (333, 576, 272), (1000, 512, 1024)])
def test_the_gradient_of_a_weight(m, n, k, device, generator):
    """`dy.T @ x`, both of whose operands are transposes: against the dequantised product tightly."""
    x = torch.randn(m, k, generator=generator, device=device).bfloat16()
    dy = torch.randn(m, n, generator=generator, device=device).bfloat16()
    a, b = quantize_with_transpose(dy)[2:], quantize_with_transpose(x)[2:]
    out = fp8gemm.gemm(*a, *b, out_dtype=torch.float32)
    check(out, *a, *b).raise_if_failed(f"M={m} N={n} K={k}")
    right = dy.double().T @ x.double()
    assert 0.01 < ((out - right).norm() / right.norm()) < 0.06


def test_offsets_past_2_31_elements(device):
    m, k = 2**31 // 16384 + 3, 16384
    free, _ = torch.cuda.mem_get_info(device)
    if free < (needed := m * k * 5):
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free memory, {free / 2**30:.0f} are left")
    x = torch.empty(m, k, dtype=torch.bfloat16, device=device).fill_(1.0)
    first = 2**31 // k
    x[first:] = torch.arange(3 * k, device=device).view(3, k).remainder(253).bfloat16() - 100
    whole, part = quantize_with_transpose(x), quantize_with_transpose(x[first:])
    ends = whole[0][first:], whole[1][first:], whole[2][:, first:], whole[3][:, first // 128 :]
    assert all(map(same_bits, ends, part))
