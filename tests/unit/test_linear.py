"""`Fp8Linear`: what it computes, from what inputs, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear
from fp8gemm.reference import gemm_reference
from tests import cases
from tests.calls import same_bits

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
K, N = 272, 136

dtypes = pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
biases = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


def linear(dtype: torch.dtype = BF16, bias: bool = True) -> nn.Linear:
    torch.manual_seed(cases.fresh_seed())
    return nn.Linear(K, N, bias=bias, dtype=dtype)


def expected_of(layer: Fp8Linear, x: Tensor) -> Tensor:
    """By the reference, from the quantised operands."""
    rows = x.reshape(-1, K).contiguous()
    operands = (*fp8gemm.quantize_activation(rows), layer.weight, layer.weight_scale_inv)
    return gemm_reference(*operands, bias=layer.bias, out_dtype=x.dtype).view(*x.shape[:-1], N)


@dtypes
@biases
@pytest.mark.parametrize("shape", [(33, K), (K,), (2, 3, K), (0, K), (2, 0, K), (1, 1, 1, K)], ids=str)
def test_output(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    original = linear(dtype, bias)
    layer, x = Fp8Linear.from_linear(original), torch.randn(shape, dtype=dtype)
    y = layer(x)
    assert y.dtype == dtype and y.shape == (*shape[:-1], N) and y.is_contiguous() and not y.requires_grad
    assert same_bits(y, expected_of(layer, x))
    if y.numel():
        exact = original(x).detach().float()
        assert (y.float() - exact).norm() < 0.06 * exact.norm()


@dtypes
def test_other_input_dtypes_than_the_weight_had(dtype: torch.dtype) -> None:
    layer, x = Fp8Linear.from_linear(linear(BF16)), torch.randn(4, K, dtype=dtype)
    assert same_bits(layer(x), expected_of(layer, x))


STRIDED = {
    "transposed": lambda: torch.randn(K, 6).t(),
    "every second row": lambda: torch.randn(12, K)[::2],
    "rows of a wider tensor": lambda: torch.randn(6, K + 5)[:, 3:-2],
    "expanded": lambda: torch.randn(1, K).expand(6, K),
    "permuted leading dimensions": lambda: torch.randn(2, 3, K).transpose(0, 1),
    "every second column": lambda: torch.randn(6, 2 * K)[:, ::2],
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_inputs_of_any_strides(make: Any) -> None:
    layer, x = Fp8Linear.from_linear(linear()), make()
    before = x.clone()
    assert same_bits(layer(x), layer(x.contiguous())) and torch.equal(x, before)


def test_from_linear_quantises_the_weight_and_copies_the_bias() -> None:
    original = linear()
    layer = Fp8Linear.from_linear(original, max_m=77, batch_invariant=True)
    codes, scales = fp8gemm.quantize_weight(original.weight.detach())
    assert same_bits(layer.weight, codes) and same_bits(layer.weight_scale_inv, scales)
    assert (layer.in_features, layer.out_features, layer.max_m, layer.batch_invariant) == (K, N, 77, True)
    before = layer.bias.clone()
    original.bias.data.zero_()
    assert same_bits(layer.bias, before) and before.any()
    assert all(type(parameter) is nn.Parameter and not parameter.requires_grad for parameter in layer.parameters())
    assert layer.training and not Fp8Linear.from_linear(original.eval()).training


def test_a_float16_bias_is_kept_exactly() -> None:
    original = linear(FP16)
    layer = Fp8Linear.from_linear(original)
    assert layer.bias is not None and layer.bias.dtype == FP32
    assert torch.equal(layer.bias, original.bias.detach().float())


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=str)
def test_from_quantized_widens_scales_exactly(dtype: torch.dtype) -> None:
    case = cases.small_integers(1, N, K, seed=3)
    layer = Fp8Linear.from_quantized(case.b, case.scales_b.to(dtype))
    assert layer.weight_scale_inv.dtype == FP32 and torch.equal(layer.weight_scale_inv, case.scales_b)
    assert layer.weight.data_ptr() == case.b.data_ptr() and layer.bias is None


def test_forward_quantized_takes_what_a_fused_kernel_made() -> None:
    layer, gate_up = Fp8Linear.from_linear(linear()), torch.randn(9, 2 * K)
    a, scales_a = fp8gemm.quantize_silu_mul(gate_up)
    for out_dtype in (BF16, FP16, FP32):
        expected = gemm_reference(
            a, scales_a, layer.weight, layer.weight_scale_inv, bias=layer.bias, out_dtype=out_dtype
        )
        assert same_bits(layer.forward_quantized(a, scales_a, out_dtype=out_dtype), expected)
    with pytest.raises(InputError, match=r"a: expected K = 272 as in b, got shape \(9, 256\)"):
        layer.forward_quantized(a[:, :256].contiguous(), scales_a)


def test_forward_runs_where_only_operators_can() -> None:
    layer = Fp8Linear.from_linear(linear())
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = layer(torch.empty(2, 3, K, dtype=BF16))
    assert y.shape == (2, 3, N) and y.dtype == BF16
    meta = copy.deepcopy(layer).to("meta")
    assert meta(torch.empty(2, 3, K, dtype=FP16, device="meta")).shape == (2, 3, N)


REFUSED_INPUTS = {
    "last dimension": (lambda: torch.randn(3, K + 16), r"x: expected .*\(\.\.\., 272\).*, got .*\(3, 288\)"),
    "no dimension": (lambda: torch.tensor(1.0), r"x: expected .*, got torch.float32 of shape \(\)"),
    "dtype": (lambda: torch.randn(3, K, dtype=torch.float64), "x: expected .* got torch.float64"),
    "FP8": (lambda: torch.randn(3, K).to(torch.float8_e4m3fn), "x: expected .* got torch.float8_e4m3fn"),
    "gradient": (lambda: torch.randn(3, K, requires_grad=True), r"x: .*needs no gradient \(inference only\)"),
    "device": (lambda: torch.randn(3, K, device="meta"), "x: expected the device of weight, cpu, got meta"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED_INPUTS.values(), ids=REFUSED_INPUTS)
def test_refused_inputs(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Fp8Linear.from_linear(linear())(make())


def test_modes_make_no_difference_and_an_input_may_require_a_gradient_where_none_is_recorded() -> None:
    layer, x = Fp8Linear.from_linear(linear()), torch.randn(3, K)
    expected = layer.eval()(x)
    assert same_bits(layer.train()(x), expected)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert same_bits(layer(x.clone().requires_grad_()), expected)


REFUSED_LAYERS = {
    "K": (lambda: Fp8Linear(24, N), "in_features: expected a multiple of 16, at least 16, got 24"),
    "no K": (lambda: Fp8Linear(0, N), "in_features: .* got 0"),
    "N": (lambda: Fp8Linear(K, 0), "out_features: expected at least 1, got 0"),
    "max_m": (lambda: Fp8Linear(K, N, max_m=0), "max_m: expected 1 to 1048576, got 0"),
    "dtype": (lambda: Fp8Linear(K, N, dtype=torch.float64), "dtype: expected one of .*, got torch.float64"),
    "K of a linear": (
        lambda: Fp8Linear.from_linear(nn.Linear(24, N)),
        "in_features: expected a multiple of 16, .* got 24",
    ),
    "dtype of a linear": (lambda: Fp8Linear.from_linear(nn.Linear(K, N).double()), "dtype: .* got torch.float64"),
    "weight": (lambda: Fp8Linear.from_quantized(torch.zeros(N, K), torch.ones(2, 3)), "weight: expected .*e4m3fn"),
    "weight's shape": (lambda: Fp8Linear.from_quantized(torch.zeros(K), torch.ones(3)), r"weight: .*\(N, K\), got"),
    "scales": (lambda: quantized(torch.ones(3, 2)), r"weight_scale_inv: .*\(2, 3\).*got .*\(3, 2\); it is transposed"),
    "scales' device": (lambda: quantized(torch.ones(2, 3, device="meta")), "weight_scale_inv: expected the device"),
    "bias": (lambda: quantized(torch.ones(2, 3), torch.ones(N + 1)), r"bias: expected .*\(136,\).*, got .*\(137,\)"),
}


def quantized(scales: Tensor, bias: Tensor | None = None) -> Fp8Linear:
    return Fp8Linear.from_quantized(torch.zeros(N, K).to(torch.float8_e4m3fn), scales, bias)


@pytest.mark.parametrize(("make", "message"), REFUSED_LAYERS.values(), ids=REFUSED_LAYERS)
def test_layers_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_new_layer_is_zero() -> None:
    layer = Fp8Linear(K, N, dtype=BF16)
    assert layer.bias is not None and layer.bias.dtype == BF16
    assert not layer(torch.randn(3, K)).any()
    assert repr(layer) == "Fp8Linear(in_features=272, out_features=136, bias=True)"
