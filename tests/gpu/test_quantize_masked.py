"""Quantisers of groups on the GPU: the plain quantisers' bits for the rows that there are, and nothing else written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.driver.current import current_stream
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.loaded import quantizer_for
from fp8gemm.kernels.quantize import ROWS_OF_WARP, QuantizeSource
from fp8gemm.products.quantize import quantize_activation, quantize_silu_mul
from fp8gemm.products.quantizers import masked_quantizer, rows_quantizer
from fp8gemm.scales import block_count, mn_major_pitch
from tests.calls import same_bits

E4M3 = torch.float8_e4m3fn
PATTERN = 0x5A
SOURCES = {QuantizeSource.PLAIN: quantize_activation, QuantizeSource.SILU_MUL: quantize_silu_mul}

every_source = pytest.mark.parametrize("source", QuantizeSource, ids=lambda source: source.value)
every_dtype = pytest.mark.parametrize("dtype", INPUTS, ids=str)


@pytest.fixture(scope="module", autouse=True)
def _built(device: torch.device) -> None:
    """All kernels of these tests, compiled on all processors."""
    pairs = list(product(QuantizeSource, INPUTS))
    wanted = [masked_quantizer(*pair) for pair in pairs]
    wanted += [rows_quantizer(*pair, rows) for pair in pairs for rows in ROWS_OF_WARP]
    build_many([quantizer.request for quantizer in wanted])


def normal(
    source: QuantizeSource, groups: int, max_m: int, k: int, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    columns = 2 * k if source is QuantizeSource.SILU_MUL else k
    return torch.randn(groups, max_m, columns, generator=generator, device=generator.device).to(dtype)


def check_groups(
    source: QuantizeSource, x: Tensor, counts: Sequence[int], found: tuple[Tensor, Tensor], context: object = ""
) -> None:
    """Rows that there are have the bits that they have without groups."""
    codes, scales = found
    valid = torch.tensor(counts, device=x.device).clamp(0, x.shape[1])
    there = torch.arange(x.shape[1], device=x.device) < valid[:, None]
    expected = SOURCES[source](x[there])
    assert same_bits(codes.view(torch.uint8)[there], expected[0].view(torch.uint8)), context
    assert same_bits(scales[there], expected[1].contiguous()), context


COUNTS: dict[str, tuple[int, int, Sequence[int]]] = {
    "one group": (1, 7, [5]),
    "all empty": (40, 5, [0] * 40),
    "some empty": (6, 20, [0, 20, 1, 0, 3, 0]),
    "wrong": (4, 6, [-1, 7, 2**31 - 1, -(2**31)]),
    "a decode's": (256, 128, [(7 * i) % 5 for i in range(256)]),
    "one gets all": (256, 300, [300 * (i == 200) for i in range(256)]),
    "more rows than warps": (32, 192, [192 - 5 * i for i in range(32)]),
    "tall groups": (3, 2001, [2001, 1, 1999]),
    "as many as lanes, and one": (33, 9, [i % 10 for i in range(33)]),
}
"""Groups, rows that there may be, and rows that there are."""


@every_source
@every_dtype
@pytest.mark.parametrize("k", [16, 144, 2048, 4112])
@pytest.mark.parametrize("counts", COUNTS)
def test_bits_of_the_plain_quantiser_and_no_other_byte_written_or_read(source, dtype, k, counts, device, generator):
    """Codes and scales between other bytes, and NaN wherever no row is."""
    groups, max_m, numbers = COUNTS[counts]
    x = normal(source, groups, max_m, k, dtype, generator)
    blocks, pitch = block_count(k), mn_major_pitch(max_m)
    there = torch.arange(max_m, device=device) < torch.tensor(numbers, device=device)[:, None]
    wide = torch.full((groups + 2, max_m + 1, x.shape[2] + 16), math.nan, dtype=dtype, device=device)
    amid = wide[1:-1, :-1, : x.shape[2]]
    amid.copy_(torch.where(there[:, :, None], x, math.nan))
    memory = [
        torch.full((size + 512,), PATTERN, dtype=torch.uint8, device=device)
        for size in (groups * max_m * k, 4 * groups * blocks * pitch)
    ]
    inside = [each[256:-256] for each in memory]
    codes = inside[0].view(E4M3).view(groups, max_m, k)
    scales = inside[1].view(torch.float32).view(groups, blocks, pitch).mT[:, :max_m]
    kernel = quantizer_for(masked_quantizer(source, dtype), device.index)
    of_groups = torch.tensor(numbers, dtype=torch.int32, device=device)
    kernel.bind_masked(amid, codes, scales, of_groups, stream=current_stream(device.index))()
    check_groups(source, x, numbers, (codes, scales), counts)

    codes.view(torch.uint8)[there] = PATTERN
    scales.view(torch.int32)[there] = int.from_bytes(bytes([PATTERN] * 4), "little")
    assert all((each == PATTERN).all() for each in memory), f"{counts}: wrote what is no row's"


@every_source
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_the_public_functions(source, integer, device, generator):
    x, numbers = normal(source, 6, 37, 272, torch.bfloat16, generator), [0, 37, 5, 40, -3, 1]
    counts = torch.tensor(numbers, dtype=integer, device=device)
    odd = torch.cat([x[:, :, :1], x], 2)[:, :, 1:]  # of which no row begins on 16 bytes
    for each in (x, odd, x.transpose(0, 1).contiguous().transpose(0, 1)):
        codes, scales = SOURCES[source](each, counts=counts)
        assert codes.is_contiguous() and scales.stride() == (3 * 40, 1, 40)
        check_groups(source, x, numbers, (codes, scales))
    assert counts.tolist() == numbers


@every_source
def test_counts_change_between_replays_of_a_graph(source, device, generator):
    groups, max_m, k = 24, 64, 400
    x = normal(source, groups, max_m, k, torch.bfloat16, generator)
    counts = torch.zeros(groups, dtype=torch.int32, device=device)
    SOURCES[source](x, counts=counts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = SOURCES[source](x, counts=counts)
    for most in (1, 3, 64, 0, 64, 2):
        counts.copy_(torch.randint(0, most + 1, (groups,), generator=generator, device=device))
        x.copy_(normal(source, groups, max_m, k, torch.bfloat16, generator))
        graph.replay()
        check_groups(source, x, counts.tolist(), captured, f"at most {most}")


@every_source
def test_what_was_written_just_before_is_what_is_read(source, device, generator):
    """Input and counts come from kernels right ahead, behind which this one may start early."""
    groups, max_m, k = 16, 64, 512
    columns = 2 * k if source is QuantizeSource.SILU_MUL else k
    a = quantize_activation(torch.randn(groups * max_m, 1024, generator=generator, device=device).bfloat16())
    weights = [
        fp8gemm.quantize_weight(torch.randn(columns, 1024, generator=generator, device=device).bfloat16())
        for _ in range(4)
    ]
    wanted = [torch.randint(0, max_m + 1, (groups,), generator=generator, device=device) for _ in range(20)]
    x = torch.zeros(groups * max_m, columns, dtype=torch.bfloat16, device=device)
    counts = torch.zeros(groups, dtype=torch.int32, device=device)
    inputs = [fp8gemm.gemm(*a, *weight).view(groups, max_m, columns) for weight in weights]
    torch.cuda.synchronize(device)
    found = []
    for i, numbers in enumerate(wanted):
        counts.copy_(numbers)
        fp8gemm.gemm(*a, *weights[i % 4], out=x)
        found.append(SOURCES[source](x.view(groups, max_m, columns), counts=counts))
    for i, numbers in enumerate(wanted):
        check_groups(source, inputs[i % 4], numbers.tolist(), found[i], i)


@every_source
def test_groups_past_2_31_elements(source, device, generator):
    """Offsets of 64 bits: the last of many groups is read and written where it lies."""
    groups, max_m, k = 40, 8192, 7168
    columns = 2 * k if source is QuantizeSource.SILU_MUL else k
    free, _ = torch.cuda.mem_get_info(device)
    needed = groups * max_m * (2 * columns + 2 * k) + 2**30
    if free < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free memory, {free / 2**30:.0f} are left")
    x = torch.empty(groups, max_m, columns, dtype=torch.bfloat16, device=device)
    numbers = [5 * (group in (0, 37, 39)) for group in range(groups)]
    for group in (0, 37, 39):
        x[group, :5] = normal(source, 1, 5, k, torch.bfloat16, generator)[0]
    codes, scales = SOURCES[source](x, counts=torch.tensor(numbers, device=device))
    for group in (0, 37, 39):
        expected = SOURCES[source](x[group, :5])
        assert same_bits(codes[group, :5], expected[0]) and same_bits(scales[group, :5], expected[1]), group
    del x, codes, scales
    torch.cuda.empty_cache()
