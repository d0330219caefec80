"""What the quantiser of a matrix and its transpose is launched with, and what its codes are for."""

from __future__ import annotations

import pytest
import torch

import fp8gemm
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.products.quantize import quantize_activation, quantize_with_transpose
from fp8gemm.scales import is_mn_major
from tests.numerics import check
from tests.played_quantizers import STREAM, Gpu

K = 272


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("m", [1, 16, 300])
def test_a_matrix_and_its_transpose_are_one_launch(m: int, dtype: torch.dtype, gpu: Gpu) -> None:
    x = torch.ones(m, 2 * K, dtype=dtype)[:, :K]
    codes, scales, of_transpose, their_scales = quantize_with_transpose(x)
    ((config, params, stream, grid),) = gpu.launches
    ((label, _),) = gpu.loads
    assert label == f"quantize-with-transpose-{INPUTS[dtype].value}"
    assert (params.x, params.x_stride, params.rows, params.k) == (x.data_ptr(), 2 * K, m, K)
    assert (params.codes, params.scales, params.scales_pitch) == (
        codes.data_ptr(),
        scales.data_ptr(),
        scales.stride(1),
    )
    assert (params.transposed, params.transposed_scales) == (of_transpose.data_ptr(), their_scales.data_ptr())
    assert params.transposed_pitch == their_scales.stride(1) >= K
    assert of_transpose.shape == (K, -(-m // 128) * 128) and of_transpose.is_contiguous()
    assert their_scales.shape == (K, -(-m // 128)) and their_scales.stride(0) == 1
    assert (stream, grid, config.threads) == (STREAM, -(-m // 128) * -(-K // 128), 256)


def test_of_no_rows_there_is_no_transpose_to_be_launched(gpu: Gpu) -> None:
    codes, scales, of_transpose, their_scales = quantize_with_transpose(torch.ones(0, K))
    assert codes.shape == (0, K) and of_transpose.shape == (K, 0)
    assert scales.shape == (0, 3) and their_scales.shape == (K, 0)
    assert gpu.launches == gpu.loads == []


@pytest.mark.parametrize("m", [0, 1, 48, 130])
def test_each_is_what_it_would_be_alone(m: int) -> None:
    x = torch.randn(m, K).bfloat16()
    found = quantize_with_transpose(x)
    padded = torch.cat([x, x.new_zeros(-m % 128, K)])
    alone = quantize_activation(x)
    transposed = quantize_activation(padded.T.contiguous()) if m else (torch.empty(K, 0), torch.empty(K, 0))
    for one, other in zip(found, (*alone, *transposed), strict=True):
        assert one.shape == other.shape and torch.equal(one.float(), other.float())
    assert is_mn_major(found[1]) and is_mn_major(found[3])


def test_the_gradient_of_a_weight() -> None:
    x, dy = torch.randn(200, K).bfloat16(), torch.randn(200, 144).bfloat16()
    a, b = quantize_with_transpose(dy)[2:], quantize_with_transpose(x)[2:]
    out = fp8gemm.gemm(*a, *b, out_dtype=torch.float32)
    check(out, *a, *b).raise_if_failed("dy.T @ x")
    right = dy.double().T @ x.double()
    assert 0.01 < (out - right).norm() / right.norm() < 0.06
