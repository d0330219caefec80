"""The linear layers of a model, read off its config: those of the models that transformers builds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from fp8gemm.ahead.architectures import ARCHITECTURES, LinearShape, linears_of_config, read_config
from fp8gemm.errors import InputError
from tests.model_configs import configs

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

CLASSES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "qwen2": "Qwen2",
    "qwen2_moe": "Qwen2Moe",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
}
few, some = settings(max_examples=3, deadline=None), settings(max_examples=20, deadline=None)


def config_of(fields: Mapping[str, Any]) -> Any:
    """What transformers makes of a config.json with these fields."""
    return getattr(transformers, f"{CLASSES[fields['model_type']]}Config").from_dict(dict(fields))


def linears_of_model(config: Any) -> Counter[LinearShape]:
    """Every linear layer of the model that transformers builds, but for the head, routers, gates and routed experts:
    how often there is one of its name and shape."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    found: Counter[LinearShape] = Counter()
    for path, module in model.named_modules():
        *_, parent, name = ("", *path.split("."))
        if isinstance(module, nn.Linear) and ".experts." not in path and name not in ("lm_head", "shared_expert_gate"):
            name = f"{parent}.{name}" if parent.startswith("shared_expert") else name
            found[LinearShape(name, module.out_features, module.in_features, module.bias is not None)] += 1
    return found


def test_the_classes_of_transformers_are_those_that_are_known() -> None:
    assert set(CLASSES) == set(ARCHITECTURES)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_layers_are_those_of_the_model_that_transformers_builds(model_type: str, tmp_path: Path) -> None:
    @some
    @given(configs(model_type))
    def check(fields: dict[str, Any]) -> None:
        config = config_of(fields)
        expected = linears_of_model(config)
        config.save_pretrained(tmp_path)
        for source in (fields, config.to_dict(), read_config(tmp_path), read_config(tmp_path / "config.json")):
            found = linears_of_config(source)
            assert {linear: linear.layers for linear in found} == expected
            assert len(found) == len(expected)

    check()


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_field_left_out_is_asked_for_or_is_what_transformers_takes_it_for(model_type: str) -> None:
    @few
    @given(configs(model_type))
    def check(fields: dict[str, Any]) -> None:
        for name in fields.keys() - {"model_type"}:
            rest = {key: value for key, value in fields.items() if key != name}
            try:
                found = set(linears_of_config(rest))
            except InputError as error:
                assert name in str(error)
                assert name.endswith(("_size", "_rank", "_dim", "_layers", "_heads", "_replace", "_experts"))
            else:
                assert found == linears_of_model(config_of(rest)).keys()

    check()


def test_the_language_model_of_a_multimodal_one_is_looked_up_inside() -> None:
    text = transformers.Qwen2Config(hidden_size=64, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    config = transformers.LlavaConfig(text_config=text).to_dict()
    assert config["model_type"] == "llava"
    assert linears_of_config(config) == linears_of_config(text.to_dict())


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_what_is_divided_is_what_transformers_divides(model_type: str) -> None:
    @some
    @given(configs(model_type).map(lambda fields: fields | {"num_attention_heads": 32, "num_key_value_heads": 32}))
    def check(fields: dict[str, Any]) -> None:
        fields |= {name: 2 * fields[name] for name in fields if name.endswith("intermediate_size")}
        config = config_of(fields)
        plan = {path.split("layers.*.")[1]: style for path, style in config.base_model_tp_plan.items()}
        whole, part = ({each.name: (each.n, each.k) for each in linears_of_config(fields, tp=tp)} for tp in (1, 2))
        for name, (n, k) in whole.items():
            style = plan.get(f"self_attn.{name}", plan.get(f"mlp.{name}"))
            divided = {"colwise": (n // 2, k), "rowwise": (n, k // 2)}
            assert style is None or part[name] == divided.get(style, (n, k))

    check()
