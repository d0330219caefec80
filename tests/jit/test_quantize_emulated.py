"""A quantiser that shares memory among its threads, without a GPU: its device code, run on an emulated Hopper whose
warps take turns at random, gives the reference's bits; and faults of it do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.kernels.quantize import quantizer_with_transpose
from fp8gemm.reference import quantize_rows, quantize_with_transpose
from fp8gemm.scales import block_count, empty_mn_major
from tests.emulated.quantize import Quantize, emulated_quantizers

E4M3 = torch.float8_e4m3fn
SHAPES = [(1, 16), (7, 112), (16, 128), (128, 144), (130, 272), (300, 400)]
HEADER = "kernels/quantize_with_transpose.cuh"

FAULTS = {
    "columns are those of one warp": (
        "        for (const auto& of_warp : largest_of_cols) {\n",
        "        for (const auto& of_warp : {largest_of_cols[0]}) {\n",
    ),
    "halves of a warp do not meet": ("ptx::max_or_nan(most, ptx::exchange(most, kLanesPerBlock))", "most"),
    "columns are read before all are written": (
        "        __syncthreads();\n        quantize_cols",
        "        quantize_cols",
    ),
    "the transpose is read before it is written": ("__syncthreads();\n        store_transpose", "store_transpose"),
    "chunks of odd columns lie the other way round": ("swizzle % 2 == 0 ? chunks : ", "true ? chunks : "),
    "rows of the transpose end where x does": ("ceil_div(params.rows, kBlockRows) * kBlockRows", "params.rows"),
    "a block's columns have its neighbour's scales": ("(block_row) * params.transposed_pitch", "(0) * 1"),
}


@pytest.fixture(scope="module")
def quantizers(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, Quantize]:
    wanted = [quantizer_with_transpose(kind) for kind in INPUTS.values()]
    return dict(zip(INPUTS, emulated_quantizers(wanted, tmp_path_factory.mktemp("quantizers")), strict=True))


def run(quantize: Quantize, x: Tensor, seed: int = 1) -> tuple[str, list[Tensor]]:
    """What is wrong besides the result; and codes and scales, and those of the transpose, poisoned before."""
    m, k = x.shape
    width = -(-m // 128) * 128
    codes, of_transpose = torch.full((m, k), 0x7F, dtype=torch.uint8), torch.full((k, width), 0x7F, dtype=torch.uint8)
    scales = empty_mn_major(m, block_count(k), device=x.device).fill_(math.nan)
    their_scales = empty_mn_major(k, block_count(m), device=x.device).fill_(math.nan)
    transpose = of_transpose.view(E4M3), their_scales
    said = quantize(x, codes.view(E4M3), scales, seed=seed, transpose=transpose)
    return said, [codes, scales, of_transpose, their_scales]


def same(found: list[Tensor], x: Tensor) -> bool:
    """Whether they are the reference's, bit for bit; a NaN is a NaN."""
    right = [each.view(torch.uint8) if each.dtype == E4M3 else each for each in quantize_with_transpose(x)]
    return all(
        torch.equal(one.float().nan_to_num(-1.0, -2.0), other.float().nan_to_num(-1.0, -2.0))
        and one.shape == other.shape
        for one, other in zip(map(one_nan, found), map(one_nan, right), strict=True)
    )


def one_nan(part: Tensor) -> Tensor:
    """Codes of NaN have either sign."""
    return torch.where((part & 0x7F) == 0x7F, 0x7F, part) if part.dtype == torch.uint8 else part


@pytest.mark.parametrize("dtype", INPUTS)
@pytest.mark.parametrize(("m", "k"), SHAPES)
def test_bits_are_the_references(quantizers: dict[torch.dtype, Quantize], m: int, k: int, dtype: torch.dtype) -> None:
    for size in (1.0, 1e-4, 1e-37):
        x = (torch.randn(m, k, generator=torch.Generator().manual_seed(m)) * size).to(dtype)
        said, found = run(quantizers[dtype], x)
        assert said == "" and same(found, x), size


def test_rows_may_be_any_pitch_apart_and_nothing_but_x_is_read(quantizers: dict[torch.dtype, Quantize]) -> None:
    storage = torch.full((150, 192), math.nan).bfloat16()
    x = storage[:137, 16:160].copy_(torch.randn(137, 144))
    said, found = run(quantizers[torch.bfloat16], x)
    assert said == "" and same(found, x)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_row_and_its_column(
    quantizers: dict[torch.dtype, Quantize], bad: float
) -> None:
    x = torch.randn(200, 272)
    x[150, 130], x[3], x[:, 5] = bad, 0.0, 0.0
    said, found = run(quantizers[torch.float32], x)
    assert said == "" and same(found, x)
    assert found[1].isfinite().sum() == found[1].numel() - 1 and found[3].isfinite().sum() == found[3].numel() - 1


def test_parts_are_those_of_a_matrix_alone() -> None:
    """The reference of both is that of each."""
    x = torch.randn(41, 144)
    codes, scales, of_transpose, their_scales = quantize_with_transpose(x)
    alone, transposed = quantize_rows(x), quantize_rows(torch.nn.functional.pad(x.T, (0, 87)))
    assert torch.equal(codes.view(torch.uint8), alone[0].view(torch.uint8)) and torch.equal(scales, alone[1])
    assert torch.equal(of_transpose.view(torch.uint8), transposed[0].view(torch.uint8))
    assert torch.equal(their_scales, transposed[1]) and of_transpose.shape == (144, 128)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    quantizer = quantizer_with_transpose(INPUTS[torch.bfloat16])
    (quantize,) = emulated_quantizers([quantizer], tmp_path, _with(*FAULTS[fault]))
    x = torch.randn(300, 400).bfloat16()
    found = [run(quantize, x, seed) for seed in range(3)]
    assert any(said or not same(parts, x) for said, parts in found)


def _with(old: str, new: str) -> Callable[[str, str], str]:
    def edit(path: str, text: str) -> str:
        assert path != HEADER or text.count(old) == 1, old
        return text.replace(old, new) if path == HEADER else text

    return edit
