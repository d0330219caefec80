"""Quantisation on the GPU is bitwise what it is on the CPU, where `tests/unit` holds it to the formula."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.driver.current import current_stream
from fp8gemm.kernels.loaded import quantizer_for
from fp8gemm.kernels.quantize import ROWS_OF_WARP, QuantizeSource
from fp8gemm.lab.bench.operands import relative_error
from fp8gemm.products.quantize import quantize_activation, quantize_weight
from fp8gemm.products.quantizers import rows_quantizer
from fp8gemm.reference import dequantize_activation, dequantize_weight, quantize_blocks, quantize_rows
from fp8gemm.scales import block_count, empty_mn_major, to_mn_major
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


CODE_VALUES = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()


def around_ties(seed: int) -> Tensor:
    """Rows (554, 512) on the CPU, float32: of every exponent that there is, subnormals too, two. Each has blocks of
    its amax and what lies on the ties between two codes; a step beside them on either side; and anything else.

    One row of two has an amax of 448 times a power of two, whose ties are numbers of bfloat16 too.
    """
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.arange(-149, 128).double()
    mantissas = torch.stack([torch.rand(277, generator=generator).double() + 1, torch.full((277,), 1.75).double()], 1)
    amax = (mantissas * exponents.exp2()[:, None]).flatten().float()[:, None]
    scales = quantize_rows(amax.expand(-1, 16).contiguous())[1].double()
    ties = (scales * (CODE_VALUES[1:] + CODE_VALUES[:-1]) / 2).float()
    beside = [ties, ties.nextafter(torch.tensor(math.inf)), ties.nextafter(torch.tensor(-math.inf))]
    anything = amax * torch.rand(554, 126, generator=generator)
    blocks = [torch.cat([amax, each.minimum(amax), torch.zeros_like(amax)], 1) for each in (*beside, anything)]
    signs = torch.randint(0, 2, (554, 512), generator=generator) * 2 - 1
    return torch.cat(blocks, 1) * signs


def quantized_with(rows: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_activation` by the kernel whose warps have so many rows."""
    m, k = x.shape
    codes = torch.empty(m, k, dtype=torch.float8_e4m3fn, device=x.device)
    scales = empty_mn_major(m, block_count(k), device=x.device)
    kernel = quantizer_for(rows_quantizer(QuantizeSource.PLAIN, x.dtype, rows), x.device.index)
    kernel.bind(x, codes, scales, stream=current_stream(x.device.index))()
    return codes, scales


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS_OF_WARP)
def test_true_division_at_and_beside_every_tie(rows, dtype, device, seed):
    x = around_ties(seed).to(dtype)
    x = x.where(x.isfinite(), 0)  # float16 ends early
    codes, scales = quantize_rows(x)
    assert codes.view(torch.uint8).unique().numel() >= 250, "codes of both signs, zeros among them"
    assert_same(quantized_with(rows, x.to(device)), (codes, to_mn_major(scales)), f"{dtype}, {rows} rows")


@pytest.mark.parametrize("dtype", DTYPES)
def test_true_division_in_blocks_of_weights(dtype, device, seed):
    """A block is 128 times one row, so that all of them share its amax; the last one has two rows."""
    rows = around_ties(seed).to(dtype)
    rows = rows.where(rows.isfinite(), 0)
    w = torch.cat([rows[i : i + 64].repeat_interleave(128, 0) for i in range(0, 554, 111)] + [rows[-2:-1]] * 2)
    assert_same(quantize_weight(w.to(device)), quantize_blocks(w), f"{dtype}")


def test_one_row_decides_for_all_warps_of_a_block(device, seed):
    """Every block has one large value somewhere, of another size in each: a warp alone knows of it at first."""
    draw = torch.Generator().manual_seed(seed)
    rows = cols = 24
    w = torch.randn(rows * 128, cols * 128, generator=draw).to(torch.bfloat16)
    at = torch.randint(128, (2, rows, cols), generator=draw) + 128 * torch.stack(
        torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    )
    w[at[0], at[1]] = 2.0 ** torch.randint(4, 60, (rows, cols), generator=draw).to(torch.bfloat16)
    right, on_device = quantize_blocks(w), w.to(device)
    for turn in range(50):
        assert_same(quantize_weight(on_device), right, f"time {turn}")


@pytest.mark.parametrize("rows", ROWS_OF_WARP)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 63, 64, 65, 333, 1500])
@pytest.mark.parametrize("k", [16, 112, 144, 272, 4112])
def test_every_number_of_rows_of_a_warp_gives_the_same_bits(rows, m, k, device, generator):
    x = torch.randn(m, k, generator=generator, device=device).bfloat16()
    x[m // 2, k - 1], x[m - 1, 0] = math.nan, math.inf
    assert_same(quantized_with(rows, x), quantize_activation(x.cpu()), f"{rows} rows of {m}x{k}")


def on_16_bytes(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0 and (x.shape[0] == 1 or x.stride(0) * x.element_size() % 16 == 0)


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "columns of a wider matrix": lambda x: x[:, 40:552],
    "off by an element": lambda x: x[:, 1:513],
    "an odd pitch": lambda x: x.view(-1)[: 64 * 601].view(64, 601)[:, :512],
    "an odd pitch, off by seven": lambda x: x.view(-1)[7 : 7 + 64 * 601].view(64, 601)[:, :512],
    "every second row": lambda x: x[::2, :512],
    "one row many times": lambda x: x[3:4, :512].expand(65, 512),
    "one row off by an element": lambda x: x[:1, 1:513],
    "rows that overlap": lambda x: x.view(-1).as_strided((65, 512), (16, 1)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", STRIDED.values(), ids=STRIDED)
def test_inputs_of_any_pitch_and_alignment(change, dtype, device, generator):
    x = change(torch.randn(65, 608, generator=generator, device=device).to(dtype))
    assert_same(quantize_activation(x), quantize_activation(x.cpu()), f"{dtype}, on 16 bytes: {on_16_bytes(x)}")
    assert_same(quantize_weight(x), quantize_weight(x.cpu()), f"{dtype}, on 16 bytes: {on_16_bytes(x)}")
    found, expected = (fp8gemm.quantize_silu_mul(each) for each in (x, x.contiguous()))
    assert_same(found, (expected[0].cpu(), to_mn_major(expected[1].cpu())), f"{dtype}, silu")
    weight = torch.randn(513, generator=generator, device=device).to(dtype)[1:]
    found = fp8gemm.quantize_add_rms_norm(x, x, weight)[:2]
    expected = fp8gemm.quantize_add_rms_norm(x.contiguous(), x.contiguous(), weight.clone())[:2]
    assert_same(found, (expected[0].cpu(), to_mn_major(expected[1].cpu())), f"{dtype}, norm")
