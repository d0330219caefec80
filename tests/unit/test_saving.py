"""Models of transformers that `fp8gemm.nn.convert` changed, saved and loaded again; and those that cannot be."""

from __future__ import annotations

import copy
import io
import json
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp8gemm.errors import InputError
from fp8gemm.integrations.transformers import load_quantized, use_fp8gemm
from fp8gemm.nn import Fp8Experts, Fp8Linear, convert
from tests import transformers_models as models  # skips where transformers is missing
from tests.calls import same_bits

transformers = models.transformers
QWEN3 = [f"model.layers.{i}.self_attn.{name}_proj" for i in (0, 1) for name in ("k", "v")]  # with 64 rows
DOWN = [f"model.layers.{i}.mlp.down_proj" for i in (0, 1)]

WHOLE: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "partial blocks": (models.qwen3, {}, {"lm_head"}),
    "biases": (lambda: models.qwen3(attention_bias=True), {}, {"lm_head"}),
    "head": (models.qwen3, {"head": True}, set()),
    "narrow layers left": (models.qwen3, {"min_features": 128}, {*QWEN3, "lm_head"}),
    "layers skipped": (models.qwen3, {"skip": ("down_proj", "layers.0")}, {"lm_head", *DOWN}),
    "tied head": (lambda: models.qwen3(tie_word_embeddings=True), {"head": True}, {"lm_head"}),
    "deepseek-v3": (models.deepseek_v3, {}, {"lm_head"}),
    "routed experts left": (
        lambda: models.deepseek_v3(first_k_dense_replace=1),
        {},
        {"lm_head", "model.layers.1.mlp.experts"},
    ),
}


def converted(make_config: Any, **options: Any) -> Any:
    model = models.new_model(make_config())
    convert(model, **{"min_features": 64, **options})
    return model


def fp8_layers(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}


def assert_same(found: Any, expected: Any) -> None:
    """The same layers, bits and outputs; found in the model whose layers are ours."""
    assert fp8_layers(found) == fp8_layers(expected)
    state, expected_state = found.state_dict(), expected.state_dict()
    assert state.keys() == expected_state.keys()
    for name, tensor in expected_state.items():
        # Widened as it is loaded, in the releases that do so.
        widened = tensor.float() if name.endswith("e_score_correction_bias") else tensor
        assert same_bits(as_bytes(state[name].to(widened.dtype)), as_bytes(widened)), name
    assert same_bits(models.logits(found, models.tokens()), models.logits(expected, models.tokens()))


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def loaded_by_the_library(path: Any) -> Any:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info.values()), info
    return model


@pytest.mark.parametrize("kind", WHOLE)
def test_round_trip(kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes, scales and outputs come back as they were, by that library's own loader and by ours."""
    models.ask_for_no_gpu(monkeypatch)
    make_config, options, left = WHOLE[kind]
    model = converted(make_config, **options)
    assert fp8_layers(model)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert saved["quant_method"] == "fp8" and saved["activation_scheme"] == "dynamic"
    assert saved["weight_block_size"] == [128, 128]
    assert left <= set(saved["modules_to_not_convert"])
    assert not any(name in saved["modules_to_not_convert"] for name in fp8_layers(model))

    theirs = loaded_by_the_library(tmp_path)
    layers = transformers.integrations.finegrained_fp8.FP8Linear
    assert {name for name, module in theirs.named_modules() if isinstance(module, layers)} == fp8_layers(model)
    use_fp8gemm(theirs)
    assert_same(theirs, model)
    ours, report = load_quantized(tmp_path)
    assert not report.skipped
    assert_same(ours, model)


def test_biases_of_float16_come_back(tmp_path: Any) -> None:
    torch.manual_seed(0)
    config = models.qwen3(attention_bias=True)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16).eval()
    convert(model, min_features=64)
    model.save_pretrained(tmp_path)
    assert_same(load_quantized(tmp_path)[0], model)


def test_a_trunk_that_was_converted_is_saved_within_its_model_and_alone(tmp_path: Any) -> None:
    """They share a config, in which each is described by its own names when it is saved."""
    model = models.new_model(models.qwen3())
    convert(model.model, min_features=64, skip=("layers.0.mlp.up_proj",))
    model.save_pretrained(tmp_path / "whole")
    assert_same(load_quantized(tmp_path / "whole")[0], model)
    model = converted(models.qwen3, skip=("layers.0.mlp.up_proj",))
    model.model.save_pretrained(tmp_path / "alone")
    trunk, _ = load_quantized(tmp_path / "alone", model_class=transformers.AutoModel)
    assert fp8_layers(trunk) == fp8_layers(model.model)
    model.save_pretrained(tmp_path / "again")
    assert_same(load_quantized(tmp_path / "again")[0], model)


def test_what_is_saved_is_what_the_model_has_then(tmp_path: Any) -> None:
    """Layers converted by a second call, by hand, or after the model was loaded in FP8."""
    model = converted(models.qwen3, skip=("layers.0",))
    convert(model, min_features=64, skip=("up_proj", "q_proj"))
    layer = model.model.layers[0].mlp
    layer.up_proj = Fp8Linear.from_linear(layer.up_proj)
    model.save_pretrained(tmp_path / "first")
    again, _ = load_quantized(tmp_path / "first")
    assert_same(again, model)
    assert len(convert(again, min_features=64).converted) == 1
    again.save_pretrained(tmp_path / "second")
    assert_same(load_quantized(tmp_path / "second")[0], again)


def test_copies_are_described_too(tmp_path: Any) -> None:
    model = converted(models.qwen3)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for i, each in enumerate((copy.deepcopy(model), torch.load(file, weights_only=False))):
        each.save_pretrained(tmp_path / str(i))
        assert_same(load_quantized(tmp_path / str(i))[0], model)


def test_a_model_is_described_at_once_by_its_own_names_for_layers() -> None:
    """For what saves it in another way."""
    config = converted(models.qwen3, skip=("layers.0.mlp",)).config.quantization_config
    names = [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")]
    assert config.modules_to_not_convert == [*names, "lm_head"]


def test_experts_of_several_layers_that_were_left_are_one_name() -> None:
    model = models.new_model(models.qwen3())
    model.model.layers[0].mlp.experts = nn.ModuleList([nn.Linear(256, 256) for _ in range(3)])
    convert(model, min_features=64, skip=("experts",))
    assert model.config.quantization_config.modules_to_not_convert == ["model.layers.0.mlp.experts", "lm_head"]


@pytest.mark.skipif(torch.__version__ < "2.7", reason="transformers reads scales of e8m0 since torch 2.7")
def test_a_model_of_which_nothing_was_converted_is_not_described(tmp_path: Any) -> None:
    model = models.new_model(models.qwen3())
    convert(model)
    assert getattr(model, "hf_quantizer", None) is None and not hasattr(model.config, "quantization_config")
    models.write_checkpoint(tmp_path, model, scale_fmt="ue8m0", scale_dtype=torch.bfloat16)
    loaded, _ = load_quantized(tmp_path)
    assert fp8_layers(loaded) and not convert(loaded).converted
    loaded.save_pretrained(tmp_path / "again")


def with_experts() -> Any:
    model = converted(lambda: models.deepseek_v3(first_k_dense_replace=1))
    block = model.model.layers[1].mlp
    weights = block.experts.gate_up_proj.detach(), block.experts.down_proj.detach()
    block.experts = Fp8Experts.from_bfloat16(*weights)
    return model


def experts_as_layers() -> Any:
    """As releases before 5.0 had them; this one takes what is called so for a block of its own."""
    model = models.new_model(models.qwen3())
    model.model.layers[0].mlp.experts = nn.ModuleList([nn.Linear(256, 256)])
    convert(model, min_features=64)
    return model


def with_a_name_that_ends_in_another() -> Any:
    model = models.new_model(models.qwen3())
    model.gate_proj = nn.Linear(256, 8)
    convert(model, min_features=64)
    return model


def kept_in_float32() -> Any:
    model = models.new_model(models.qwen3())
    model._keep_in_fp32_modules = {"up_proj"}
    convert(model, min_features=64)
    return model


def loaded_with(**quantization: Any) -> Any:
    config = models.qwen3()
    config.quantization_config = {"quant_method": "fp8", **quantization}
    return converted(lambda: config)


class FirstConfig(transformers.PretrainedConfig):
    model_type = "first"


class First(transformers.PreTrainedModel):
    config_class = FirstConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.up, self.norm = nn.Linear(512, 512), nn.LayerNorm(512)
        self.post_init()


def first_parameter() -> Any:
    model = First(FirstConfig())
    convert(model)
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "experts": (with_experts, r"model\.layers\.1\.mlp\.experts: save_pretrained has no names for the scales of"),
    "experts as layers": (
        experts_as_layers,
        r"layers\.0\.mlp\.experts\.0: .* pattern 'model\.layers\.0\.mlp\.experts'",
    ),
    "names": (
        with_a_name_that_ends_in_another,
        r"model\.layers\.0\.mlp\.gate_proj: .* pattern 'gate_proj', for what is not",
    ),
    "float32": (kept_in_float32, r"model\.layers\.0\.mlp\.up_proj: .* pattern 'up_proj', for what is not"),
    "scales": (lambda: loaded_with(scale_fmt="ue8m0"), "layers of scale_fmt 'ue8m0' and of 'float'"),
    "blocks": (lambda: loaded_with(weight_block_size=[64, 64]), r"layers of weight_block_size \[64, 64\] and of \[128"),
    "static": (lambda: loaded_with(activation_scheme="static"), r"layers of activation_scheme 'static' and of 'dyn"),
    "method": (lambda: loaded_with(quant_method="gptq"), r"layers of quant_method 'gptq' and of 'fp8'"),
    "dtype": (first_parameter, r"up\.weight: save_pretrained takes a first parameter's dtype for the model's"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_no_config_describes_is_converted_and_not_saved(kind: str, tmp_path: Any) -> None:
    make, message = REFUSED[kind]
    model = make()
    assert fp8_layers(model)
    with pytest.raises(InputError, match=message) as caught:
        model.save_pretrained(tmp_path / "saved")
    assert "\n" not in str(caught.value) and "torch.save" in str(caught.value)
    assert not list((tmp_path / "saved").iterdir())
    torch.save(model.state_dict(), tmp_path / "state")


def test_a_config_of_the_same_format_that_says_less_is_no_other_format(tmp_path: Any) -> None:
    """As a frame has it that was made for a checkpoint, whose config.json leaves out what was added later."""
    loaded_with(fmt="e4m3", weight_block_size=[128, 128]).save_pretrained(tmp_path)
    assert fp8_layers(load_quantized(tmp_path)[0])


@pytest.mark.parametrize("lacking", ["quantizer_finegrained_fp8", "quantizers_utils"])
def test_an_older_transformers_is_warned_of(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"transformers.quantizers.{lacking}", None)
    with pytest.warns(UserWarning, match=r"save_pretrained will write FP8 codes that nothing says .* 5\.17") as caught:
        assert fp8_layers(converted(models.qwen3))
    assert [warning.filename for warning in caught] == [__file__]


def test_models_of_others_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(512, 512))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(model)
    assert not hasattr(model, "hf_quantizer") and not hasattr(model, "config")
