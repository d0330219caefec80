"""`Fp8Experts` made and loaded: from names and layouts of checkpoints, with bad ones refused whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts
from fp8gemm.products.quantize import quantize_weight
from tests import cases
from tests.calls import same_bits
from tests.experts import same_block, weights

FP32, FP8 = torch.float32, torch.float8_e4m3fn
G, H, INNER = 4, 272, 128
PREFIX = "layers.0.experts."

State = dict[str, Tensor]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(cases.fresh_seed())


@pytest.fixture
def plain(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return weights(G, H, INNER, generator)


@pytest.fixture
def experts(plain: tuple[Tensor, Tensor]) -> Fp8Experts:
    return Fp8Experts.from_bfloat16(*plain)


def model_of(experts: nn.Module) -> nn.Module:
    return nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"experts": experts})])})


def one_by_one(plain: tuple[Tensor, Tensor], *, quantised: bool = True, scale_dtype: torch.dtype = FP32) -> State:
    """The names of DeepSeek-V3's and Qwen3-MoE's checkpoints, quantised as FP8 ones are or not at all."""
    state: State = {}
    for i, (gate_up, down) in enumerate(zip(*plain, strict=True)):
        parts = zip(("gate_proj", "up_proj", "down_proj"), (*gate_up.chunk(2), down), strict=True)
        for name, weight in parts:
            key = f"{PREFIX}{i}.{name}.weight"
            state[key] = weight.clone()
            if quantised:
                state[key], scales = quantize_weight(weight)
                state[f"{key}_scale_inv"] = scales.to(scale_dtype)
    return state


def test_from_bfloat16_quantises_each_expert(plain: tuple[Tensor, Tensor], experts: Fp8Experts) -> None:
    found = {name: (value.dtype, tuple(value.shape)) for name, value in experts.state_dict().items()}
    assert found == {
        "gate_up_proj": (FP8, (G, 2 * INNER, H)),
        "gate_up_proj_scale_inv": (FP32, (G, 2, 3)),
        "down_proj": (FP8, (G, H, INNER)),
        "down_proj_scale_inv": (FP32, (G, 3, 1)),
    }
    for name, whole in zip(("gate_up_proj", "down_proj"), plain, strict=True):
        for group, weight in enumerate(whole):
            codes, scales = quantize_weight(weight)
            assert same_bits(getattr(experts, name)[group], codes)
            assert same_bits(getattr(experts, f"{name}_scale_inv")[group], scales)


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=str)
def test_from_quantized_keeps_tensors_and_widens_scales_exactly(dtype: torch.dtype, experts: Fp8Experts) -> None:
    gate_up, gate_up_scales, down, down_scales = (parameter.detach() for parameter in experts.parameters())
    gate_up_scales, down_scales = (2.0 ** scales.log2().round() for scales in (gate_up_scales, down_scales))
    other = Fp8Experts.from_quantized(gate_up, gate_up_scales.to(dtype), down, down_scales.to(dtype))
    assert other.gate_up_proj.data_ptr() == gate_up.data_ptr() and other.down_proj.data_ptr() == down.data_ptr()
    assert other.down_proj_scale_inv.dtype == FP32 and torch.equal(other.down_proj_scale_inv, down_scales)
    assert torch.equal(other.gate_up_proj_scale_inv, gate_up_scales)


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("names", ["own", "one by one", "one by one, bf16", "fused bf16"])
def test_loading(names: str, place: str, plain: tuple[Tensor, Tensor], experts: Fp8Experts) -> None:
    states: dict[str, State] = {
        "own": {PREFIX + name: value for name, value in experts.state_dict().items()},
        "one by one": one_by_one(plain),
        "one by one, bf16": one_by_one(plain, quantised=False),
        "fused bf16": {f"{PREFIX}gate_up_proj": plain[0], f"{PREFIX}down_proj": plain[1]},
    }
    state = states[names]
    keys = list(state)
    module = Fp8Experts(G, H, INNER, device=place)
    model_of(module).load_state_dict(state, assign=place == "meta")
    assert same_block(module, experts) and list(state) == keys
    assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES[1:], ids=str)
def test_loading_widens_scales_exactly(dtype: torch.dtype, plain: tuple[Tensor, Tensor]) -> None:
    state = one_by_one(plain)
    for key in [key for key in state if key.endswith("_inv")]:
        state[key] = (2.0 ** state[key].log2().round()).to(dtype)
    module = Fp8Experts(G, H, INNER)
    model_of(module).load_state_dict(state)
    up = state[f"{PREFIX}2.up_proj.weight_scale_inv"].float()
    assert torch.equal(module.gate_up_proj_scale_inv[2, 1:], up) and module.gate_up_proj_scale_inv.dtype == FP32


@pytest.mark.parametrize("quantised", [True, False])
def test_a_rank_loads_its_experts_and_passes_over_others(
    quantised: bool, plain: tuple[Tensor, Tensor], experts: Fp8Experts
) -> None:
    whole = one_by_one(plain, quantised=quantised)
    mine = {key: value for key, value in whole.items() if key.startswith((f"{PREFIX}1.", f"{PREFIX}2."))}
    fused = {f"{PREFIX}gate_up_proj": plain[0], f"{PREFIX}down_proj": plain[1]}
    if quantised:
        fused = {PREFIX + name: value for name, value in experts.state_dict().items()}
    for state in (whole, mine, fused):
        module = Fp8Experts(G, H, INNER, first_expert=1, num_local_experts=2)
        model_of(module).load_state_dict(state)
        for name, value in module.state_dict().items():
            assert same_bits(value, getattr(experts, name)[1:3])
    module = Fp8Experts(G, H, INNER, first_expert=3, num_local_experts=1)
    with pytest.raises(RuntimeError, match='Missing key.*"layers.0.experts.gate_up_proj"'):
        model_of(module).load_state_dict(mine)


@pytest.mark.parametrize("intermediate", [96, 192])
def test_where_gate_and_up_would_share_a_block(intermediate: int, generator: torch.Generator) -> None:
    plain = weights(G, H, intermediate, generator)
    module = Fp8Experts(G, H, intermediate)
    model_of(module).load_state_dict(one_by_one(plain, quantised=False))
    assert same_block(module, Fp8Experts.from_bfloat16(*plain))
    message = rf"^{PREFIX}0.gate_proj.weight_scale_inv: .* multiple of 128.* got {intermediate}$"
    with pytest.raises(InputError, match=message):
        model_of(module).load_state_dict(one_by_one(plain))


def without(key: str) -> Callable[[State], State]:
    return lambda state: {name: value for name, value in state.items() if name != PREFIX + key}


def with_changed(key: str, make: Callable[[Tensor], Tensor]) -> Callable[[State], State]:
    return lambda state: {**state, PREFIX + key: make(state[PREFIX + key])}


GATE, SCALE = "1.gate_proj.weight", "1.gate_proj.weight_scale_inv"
BAD: dict[str, tuple[Callable[[State], State], str]] = {
    "no weight": (without(GATE), rf"^{PREFIX}{GATE}: expected it beside the other experts' tensors, got .* without it"),
    "no scales": (without(SCALE), rf"^{PREFIX}{SCALE}: expected it beside {PREFIX}{GATE}, got .* without it"),
    "transposed": (with_changed(GATE, Tensor.t), rf"^{PREFIX}{GATE}: .*\(128, 272\).*got .*\(272, 128\)"),
    "transposed scales": (with_changed(SCALE, Tensor.t), rf"^{PREFIX}{SCALE}: .*\(1, 3\).*; it is transposed"),
    "e5m2": (with_changed(GATE, lambda x: x.view(torch.float8_e5m2)), rf"^{PREFIX}{GATE}: .* got torch.float8_e5m2"),
    "scales of what is not quantised": (with_changed(GATE, Tensor.bfloat16), rf"^{PREFIX}{GATE}: .*; quantise it"),
    "gate alone not quantised": (
        lambda state: without(SCALE)(with_changed(GATE, Tensor.bfloat16)(state)),
        rf"^{PREFIX}{GATE}: expected the dtype of {PREFIX}1.up_proj.weight, torch.float8_e4m3fn.* got torch.bfloat16",
    ),
    "the last expert's": (without("3.down_proj.weight"), rf"^{PREFIX}3.down_proj.weight: expected it beside"),
    "both kinds of names": (
        lambda state: {**state, f"{PREFIX}down_proj": torch.zeros(G, H, INNER)},
        rf"^{PREFIX}down_proj: expected it without tensors of single experts, got {PREFIX}0.gate_proj.weight too",
    ),
    "one fused weight": (
        lambda state: {f"{PREFIX}gate_up_proj": torch.zeros(G, 2 * INNER, H)},
        rf"^{PREFIX}down_proj: expected it beside {PREFIX}gate_up_proj, got .* without it",
    ),
    "fused, of other experts": (
        lambda state: {f"{PREFIX}gate_up_proj": torch.zeros(3, 2 * INNER, H), f"{PREFIX}down_proj": torch.zeros(1)},
        rf"^{PREFIX}gate_up_proj: expected shape \(4, 256, 272\), got torch.float32 of shape \(3, 256, 272\)",
    ),
    "fused codes without scales": (
        lambda state: {
            f"{PREFIX}gate_up_proj": torch.zeros(G, 2 * INNER, H).to(FP8),
            f"{PREFIX}down_proj": torch.zeros(1),
        },
        rf"^{PREFIX}gate_up_proj_scale_inv: expected it beside {PREFIX}gate_up_proj",
    ),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_checkpoints_are_refused_by_the_whole_key(
    change: Callable[[State], State], message: str, strict: bool, plain: tuple[Tensor, Tensor]
) -> None:
    module = Fp8Experts(G, H, INNER)
    before = copy.deepcopy(module)
    with pytest.raises(InputError, match=message):
        model_of(module).load_state_dict(change(one_by_one(plain)), strict=strict)
    assert same_block(module, before)


def test_what_is_no_expert_of_the_layer_is_unexpected(plain: tuple[Tensor, Tensor], experts: Fp8Experts) -> None:
    extra = [f"{PREFIX}{key}" for key in (f"{G}.up_proj.weight", "0.gate_proj.bias", "01.up_proj.weight")]
    state = one_by_one(plain) | dict.fromkeys(extra, torch.ones(1))
    module = Fp8Experts(G, H, INNER)
    missing, unexpected = model_of(module).load_state_dict(state, strict=False)
    assert not missing and sorted(unexpected) == sorted(extra) and same_block(module, experts)
    missing, _ = model_of(module).load_state_dict({}, strict=False)
    assert missing == [PREFIX + name for name in module.state_dict()]


def test_the_names_are_those_that_transformers_writes(tmp_path: Path) -> None:
    models = pytest.importorskip("tests.transformers_models", reason="transformers or safetensors is not installed")
    sizes = {"moe_intermediate_size": 128, "num_hidden_layers": 1}
    qwen3_moe = models.transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=256, num_attention_heads=2, num_experts=G, num_experts_per_tok=2, **sizes
    )
    for config in (qwen3_moe, models.deepseek_v3(first_k_dense_replace=0, n_routed_experts=G, **sizes)):
        model = models.new_model(config)
        directory = tmp_path / config.model_type
        directory.mkdir()
        state = models.write_checkpoint(directory, model)
        prefix = "model.layers.0.mlp.experts."
        module = Fp8Experts(G, 256, 128)
        module.load_state_dict({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
        own = model.model.layers[0].mlp.experts
        assert same_block(module, Fp8Experts.from_bfloat16(own.gate_up_proj, own.down_proj)), config.model_type
