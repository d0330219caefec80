"""`Fp8Linear` moved, copied, saved and loaded: codes and scales keep their bits, and bad checkpoints are refused."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear
from tests import cases
from tests.calls import same_bits

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
K, N = 272, 136


@pytest.fixture
def layer() -> Fp8Linear:
    return made()


def made(bias_dtype: torch.dtype = BF16) -> Fp8Linear:
    case = cases.signed(1, N, K, seed=cases.fresh_seed(), bias=FP32)
    assert case.bias is not None
    return Fp8Linear.from_quantized(case.b, case.scales_b, case.bias.to(bias_dtype), max_m=99, batch_invariant=True)


def same_layer(left: Fp8Linear, right: Fp8Linear) -> bool:
    left_state, right_state = left.state_dict(), right.state_dict()
    return left_state.keys() == right_state.keys() and all(same_bits(left_state[k], right_state[k]) for k in left_state)


DTYPE_CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "half": nn.Module.half,
    "bfloat16": nn.Module.bfloat16,
    "float": nn.Module.float,
    "double": nn.Module.double,
    "to": lambda model: model.to(BF16),
    "to, with a device": lambda model: model.to("cpu", FP16),
    "type": lambda model: model.type(FP16),
}


@pytest.mark.parametrize("change", DTYPE_CHANGES.values(), ids=DTYPE_CHANGES)
@pytest.mark.parametrize("bias_dtype", [BF16, FP32], ids=str)
def test_changes_of_dtype_leave_codes_and_scales_alone(
    bias_dtype: torch.dtype, change: Callable[[nn.Module], nn.Module]
) -> None:
    layer = made(bias_dtype)
    before, x = copy.deepcopy(layer), torch.randn(3, K)
    model = nn.Sequential(layer, nn.Linear(N, 16))
    change(model)
    assert model[1].weight.dtype != FP32 or change is nn.Module.float
    assert same_bits(layer.weight, before.weight) and same_bits(layer.weight_scale_inv, before.weight_scale_inv)
    assert layer.bias.dtype in (BF16, FP32)
    if layer.bias.dtype == bias_dtype:
        assert same_bits(layer.bias, before.bias)
    assert torch.allclose(layer(x), before(x), rtol=0.02, atol=0.02 * float(before(x).abs().max()))
    assert all(type(parameter) is nn.Parameter and not parameter.requires_grad for parameter in layer.parameters())


def test_an_exact_bias_is_never_rounded_by_half() -> None:
    layer = made(FP32)
    before = layer.bias.clone()
    assert same_bits(layer.half().bias, before)


def test_to_meta_and_back_by_to_empty(layer: Fp8Linear) -> None:
    before = copy.deepcopy(layer)
    layer.to("meta")
    assert layer.weight.is_meta and layer.weight.dtype == FP8 and layer.weight_scale_inv.dtype == FP32
    layer.to_empty(device="cpu")
    assert (layer.weight.dtype, layer.weight.shape, layer.bias.dtype) == (FP8, (N, K), BF16)
    layer.load_state_dict(before.state_dict())
    assert same_layer(layer, before)


def test_share_memory(layer: Fp8Linear) -> None:
    before = copy.deepcopy(layer)
    layer.share_memory()
    assert all(parameter.is_shared() for parameter in layer.parameters())
    assert same_layer(layer, before)


def through_torch_save(layer: Fp8Linear) -> Fp8Linear:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded: Fp8Linear = torch.load(file, weights_only=False)
    return loaded


COPIES: dict[str, Callable[[Fp8Linear], Fp8Linear]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "torch.save": through_torch_save,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_copies_are_layers_of_their_own(
    has_bias: bool, copied: Callable[[Fp8Linear], Fp8Linear], layer: Fp8Linear
) -> None:
    if not has_bias:
        layer = Fp8Linear.from_quantized(layer.weight, layer.weight_scale_inv, max_m=99, batch_invariant=True)
    other = copied(layer)
    assert same_layer(other, layer) and repr(other) == repr(layer)
    assert (other.max_m, other.batch_invariant, other.bias is None) == (99, True, not has_bias)
    assert {type(parameter) for parameter in other.parameters()} == {nn.Parameter}
    assert not any(parameter.requires_grad for parameter in other.parameters())
    x, expected = torch.randn(2, K), layer(torch.ones(2, K))
    other.weight.view(torch.uint8).zero_()
    assert same_bits(layer(torch.ones(2, K)), expected) and layer.weight.view(torch.uint8).any()
    assert not (other(x) - (0 if other.bias is None else other.bias)).any()


def test_a_shared_weight_stays_shared_in_a_deep_copy(layer: Fp8Linear) -> None:
    twin = Fp8Linear.from_quantized(layer.weight, layer.weight_scale_inv)
    twin.weight = layer.weight
    first, second = copy.deepcopy(nn.ModuleList([layer, twin]))
    assert first.weight.data_ptr() == second.weight.data_ptr() != layer.weight.data_ptr()


def test_a_state_dict_is_that_of_fp8_checkpoints(layer: Fp8Linear) -> None:
    found = {name: (value.dtype, tuple(value.shape)) for name, value in layer.state_dict().items()}
    assert found == {"weight": (FP8, (N, K)), "weight_scale_inv": (FP32, (2, 3)), "bias": (BF16, (N,))}


@pytest.mark.parametrize("assign", [False, True])
def test_round_trip_through_safetensors(assign: bool, layer: Fp8Linear, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = nn.Sequential(nn.Linear(K, K), layer)
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta" if assign else "cpu"):
        other = nn.Sequential(nn.Linear(K, K), Fp8Linear(K, N, dtype=BF16))
    other.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"), assign=assign)
    assert same_layer(other[1], layer) and not other[1].weight.requires_grad
    x = torch.randn(3, K)
    with torch.no_grad():
        assert same_bits(other(x), model(x))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=str)
def test_loading_widens_scales_and_a_float16_bias_exactly(dtype: torch.dtype, assign: bool) -> None:
    case = cases.small_integers(1, N, K, seed=4, bias=FP32)
    assert case.bias is not None
    state = {"weight": case.b, "weight_scale_inv": case.scales_b.to(dtype), "bias": case.bias.to(FP16)}
    layer = Fp8Linear(K, N, dtype=FP16)
    layer.load_state_dict(state, assign=assign)
    assert layer.weight_scale_inv.dtype == layer.bias.dtype == FP32
    assert torch.equal(layer.weight_scale_inv, case.scales_b) and torch.equal(layer.bias, case.bias)
    assert state["weight_scale_inv"].dtype == dtype and state["bias"].dtype == FP16


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="torch has no float8_e8m0fnu before 2.7")
def test_the_least_and_the_largest_e8m0_scale_are_exact() -> None:
    exponents = torch.tensor([[0, 1, 254]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    layer = Fp8Linear.from_quantized(torch.zeros(16, K).to(FP8), exponents)
    assert layer.weight_scale_inv.tolist() == [[2.0**-127, 2.0**-126, 2.0**127]]


def test_a_weight_whose_k_is_not_contiguous_is_laid_out_anew() -> None:
    case = cases.signed(1, 256, 256, seed=5)
    layer = Fp8Linear(256, 256, bias=False, device="meta")
    state = {"weight": case.b.t().contiguous().t(), "weight_scale_inv": case.scales_b.t().contiguous().t()}
    layer.load_state_dict(state, assign=True)
    assert layer.weight.is_contiguous() and layer.weight_scale_inv.is_contiguous()
    assert same_bits(layer.weight, case.b) and same_bits(layer.weight_scale_inv, case.scales_b)


def changed(name: str, make: Callable[[Tensor], Tensor] | None) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def change(state: dict[str, Tensor]) -> dict[str, Tensor]:
        tensor = state.pop(name)
        return state if make is None else {**state, name: make(tensor)}

    return change


WEIGHT, SCALES, BIAS = (f"decoder.0.{name}" for name in ("weight", "weight_scale_inv", "bias"))
BAD: dict[str, tuple[Any, str]] = {
    "no scales": (changed(SCALES, None), rf"^{SCALES}: expected it beside {WEIGHT}"),
    "no weight": (changed(WEIGHT, None), rf"^{WEIGHT}: expected it beside {SCALES}"),
    "transposed scales": (changed(SCALES, Tensor.t), rf"^{SCALES}: .*\(2, 3\).*got .*\(3, 2\); it is transposed"),
    "scales of rows": (changed(SCALES, lambda x: torch.ones(N, 3)), rf"^{SCALES}: .*\(2, 3\).*got .*\(136, 3\)"),
    "one scale": (changed(SCALES, lambda x: torch.ones(1)), rf"^{SCALES}: .* got torch.float32 of shape \(1,\)"),
    "scales in float16": (changed(SCALES, Tensor.half), rf"^{SCALES}: .* got torch.float16"),
    "an unquantised weight": (changed(WEIGHT, Tensor.bfloat16), rf"^{WEIGHT}: .* got torch.bfloat16.*; quantise it"),
    "e5m2": (changed(WEIGHT, lambda x: x.view(torch.float8_e5m2)), rf"^{WEIGHT}: .* got torch.float8_e5m2"),
    "bytes": (changed(WEIGHT, lambda x: x.view(torch.uint8)), rf"^{WEIGHT}: .* got torch.uint8"),
    "a transposed weight": (changed(WEIGHT, Tensor.t), rf"^{WEIGHT}: .*\(136, 272\).*got .*\(272, 136\)"),
    "a bias too long": (changed(BIAS, lambda x: torch.ones(N + 1)), rf"^{BIAS}: .*\(136,\).*got .*\(137,\)"),
    "a bias in float64": (changed(BIAS, Tensor.double), rf"^{BIAS}: .* got torch.float64"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_checkpoints_are_refused_by_the_whole_key(change: Any, message: str, strict: bool) -> None:
    model = nn.ModuleDict({"decoder": nn.ModuleList([made()])})
    before = copy.deepcopy(model["decoder"][0])
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        model.load_state_dict(change(state), strict=strict)
    assert same_layer(model["decoder"][0], before)


def test_a_layer_that_is_absent_is_a_missing_key_as_anywhere(layer: Fp8Linear) -> None:
    model = nn.Sequential(layer)
    missing, unexpected = model.load_state_dict({"1.weight": torch.ones(1)}, strict=False)
    assert set(missing) == {"0.weight", "0.weight_scale_inv", "0.bias"} and unexpected == ["1.weight"]
    with pytest.raises(RuntimeError, match='Missing key.*"0.weight"'):
        model.load_state_dict({})
