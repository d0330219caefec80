"""Checkpoints that cannot be right are refused, and the error names the parameter."""

from __future__ import annotations

import json

import pytest
import torch

from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.integrations.transformers import install_kernel, library, load_quantized, use_fp8gemm
from tests import transformers_models as models  # skips where transformers is missing

NAME = "model.layers.0.mlp.gate_proj"
WEIGHT, SCALE = f"{NAME}.weight", NAME + models.SCALE


def without_scale(tensors):
    del tensors[SCALE]


def transposed(tensors):
    tensors[SCALE] = tensors[SCALE].t().contiguous()


def one_block_short(tensors):
    tensors[SCALE] = tensors[SCALE][:-1].clone()


def half_scales(tensors):
    tensors[SCALE] = tensors[SCALE].half()


def unquantised_with_scales(tensors):
    tensors[WEIGHT] = tensors[WEIGHT].to(torch.bfloat16)


def unquantised(tensors):
    unquantised_with_scales(tensors)
    without_scale(tensors)


def without_weight(tensors):
    del tensors[WEIGHT]


def other_fp8(tensors):
    tensors[WEIGHT] = tensors[WEIGHT].float().to(torch.float8_e5m2)


def nan_scale(tensors):
    tensors[SCALE][0, 0] = torch.nan


SPOILT = {
    without_scale: rf"{SCALE}: expected the scales of {WEIGHT}, .*got none",
    transposed: rf"{SCALE}: expected shape \(3, 2\), .*got \(2, 3\); they are transposed",
    one_block_short: rf"{SCALE}: expected shape \(3, 2\), .*got \(2, 2\)$",
    half_scales: rf"{SCALE}: expected one of F32, .*got F16",
    unquantised_with_scales: rf"{WEIGHT}: expected F8_E4M3, .*got one of BF16",
    unquantised: rf"{SCALE}: expected it in the checkpoint, got none",
    without_weight: rf"{WEIGHT}: expected F8_E4M3, .*got no such weight",
    other_fp8: rf"{WEIGHT}: expected F8_E4M3, .*got one of F8_E5M2",
    nan_scale: rf"{SCALE}: expected finite",
}


@pytest.fixture(scope="module")
def original():
    return models.new_model(models.qwen3(num_hidden_layers=1))


@pytest.mark.parametrize("edit", SPOILT)
def test_spoilt_tensors(edit, original, tmp_path):
    models.write_checkpoint(tmp_path, original, edit=edit)
    with pytest.raises(InputError, match=SPOILT[edit]):
        load_quantized(tmp_path)


def test_quantised_weight_of_a_layer_that_shall_not_be(original, tmp_path):
    """Its codes would be taken for the weight itself."""
    models.write_checkpoint(tmp_path, original, modules_to_not_convert=["lm_head", NAME])
    with pytest.raises(InputError, match=rf"{SCALE}: expected no scales for a layer that stays unquantised"):
        load_quantized(tmp_path)


STATIC_SCALE = "model.layers.0.mlp.down_proj.activation_scale"


def with_activation_scales(tensors):
    names = [name.removesuffix(models.SCALE) for name in tensors if name.endswith(models.SCALE)]
    tensors.update({f"{name}.activation_scale": torch.tensor(0.5) for name in names})


def with_all_but_one(tensors):
    with_activation_scales(tensors)
    del tensors[STATIC_SCALE]


@pytest.mark.parametrize("edit", [None, with_all_but_one])
def test_static_activation_scales_that_are_not_there(edit, original, tmp_path):
    """They would be memory as it was found."""
    models.write_checkpoint(tmp_path, original, edit=edit, activation_scheme="static")
    with pytest.raises(InputError, match=rf"{STATIC_SCALE}: expected it in the checkpoint, .* \"static\", got none$"):
        load_quantized(tmp_path)


def test_static_activation_scales_that_are_there(original, tmp_path):
    models.write_checkpoint(tmp_path, original, edit=with_activation_scales, activation_scheme="static")
    model, report = load_quantized(tmp_path)
    assert not report.converted and {layer.reason for layer in report.skipped} == {"its activation scales are static"}
    assert model.get_submodule(NAME).activation_scale == 0.5


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"weight_block_size": [96, 128]},
            UnsupportedError,
            r"expected weight_block_size \[128, 128\], or divisors of 128, as \[32, 32\], got \[96, 128\]",
        ),
        ({"weight_block_size": None}, UnsupportedError, "got None"),
        ({"quant_method": "gptq"}, InputError, "expected quant_method \"fp8\", got 'gptq'"),
    ],
)
def test_other_quantisation(changes, error, message, original, tmp_path):
    models.write_checkpoint(tmp_path, original, **changes)
    with pytest.raises(error, match=message):
        load_quantized(tmp_path)


def test_no_checkpoint(original, tmp_path):
    with pytest.raises(InputError, match="path: expected a directory"):
        load_quantized(tmp_path / "missing")
    original.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="expected a quantization_config, got none"):
        load_quantized(tmp_path)
    models.write_checkpoint(tmp_path, original)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"expected \.safetensors files"):
        load_quantized(tmp_path)


def test_options_reach_the_loader_and_the_layers(original, tmp_path):
    models.write_checkpoint(tmp_path, original)
    config = models.transformers.AutoConfig.from_pretrained(tmp_path)
    model, _ = load_quantized(
        str(tmp_path), model_class=models.transformers.Qwen3ForCausalLM, max_m=32, config=config, dtype=torch.float32
    )
    layer = model.get_submodule(NAME)
    assert layer.max_m == 32 and layer.weight.dtype == torch.float8_e4m3fn
    assert models.logits(model, models.tokens()).dtype == model.lm_head.weight.dtype == torch.float32
    assert config.quantization_config["quant_method"] == "fp8", "the caller's config is as it was"


def test_sharded_checkpoint(original, tmp_path):
    """Two files and their index, as every large checkpoint has."""
    from safetensors.torch import save_file

    tensors = models.write_checkpoint(tmp_path, original)
    whole, _ = load_quantized(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + (name == SCALE)}-of-00002.safetensors" for name in tensors}
    for file in set(files.values()):
        part = {name: tensors[name] for name in tensors if files[name] == file}
        save_file(part, tmp_path / file, metadata={"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    model, _ = load_quantized(tmp_path)
    assert torch.equal(models.logits(model, models.tokens()), models.logits(whole, models.tokens()))


@pytest.mark.parametrize("found", ["4.57.1", "5.16.2", None])
def test_transformers_that_is_too_old_or_missing(found, original, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "installed_version", lambda name: found)
    for call in (lambda: use_fp8gemm(original), lambda: load_quantized(tmp_path), install_kernel):
        with pytest.raises(UnsupportedError, match=f"transformers: expected 5.17 or newer, got {found or 'none'}"):
            call()


@pytest.mark.parametrize("found", ["5.17.0", "5.18.0.dev0", "6.0.0"])
def test_transformers_that_is_new_enough(found, monkeypatch):
    monkeypatch.setattr(library, "installed_version", lambda name: found)
    assert library.fp8_layers().__name__.endswith("finegrained_fp8")
