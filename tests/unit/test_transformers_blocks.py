"""Checkpoints and layers of transformers with scales of 32x32 blocks: folded as they are loaded, saved as 128x128."""

from __future__ import annotations

import copy
import json

import pytest
import torch

import fp8gemm
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.integrations.transformers import block_fp8_linear, load_quantized, use_fp8gemm
from fp8gemm.nn import Fp8Linear
from fp8gemm.scales import E8M0
from tests import transformers_models as models  # skips where transformers is missing
from tests.cases import SCALE_DTYPES
from tests.folding import SMALL, of_folded, values
from tests.unit.test_transformers import LOGIT_ERROR, relative_error

BLOCK = (32, 32)
NAME = "model.layers.0.mlp.gate_proj"
SCALE = NAME + models.SCALE


def spread(tensors):
    """Scales that differ by up to 2^4 within each 128x128 block."""
    for name in [name for name in tensors if name.endswith(models.SCALE)]:
        draw = torch.Generator().manual_seed(len(name))
        shifts = torch.randint(-4, 1, tensors[name].shape, generator=draw).float()
        tensors[name] = (tensors[name].float() * shifts.exp2()).to(tensors[name].dtype)


@pytest.fixture(scope="module")
def original():
    return models.new_model(models.qwen3(num_hidden_layers=1))


@pytest.mark.parametrize("dtype", SCALE_DTYPES, ids=str)
def test_a_checkpoint_is_loaded_and_saved_again(dtype, original, tmp_path):
    formats = {"scale_fmt": "ue8m0"} if dtype is E8M0 else {}
    tensors = models.write_checkpoint(tmp_path, original, scale_dtype=dtype, block_size=BLOCK, edit=spread, **formats)
    model, report = load_quantized(tmp_path)
    assert not report.skipped and len(report.converted) == 7
    for layer in report.converted:
        ours = model.get_submodule(layer.name)
        assert isinstance(ours, Fp8Linear) and ours.weight_scale_inv.dtype == torch.float32
        folded = fp8gemm.fold_scales(tensors[f"{layer.name}.weight"], tensors[layer.name + models.SCALE])
        assert torch.equal(ours.weight.float(), folded.codes.float())
        assert torch.equal(ours.weight_scale_inv, folded.scales) and layer.fold_error == folded.error < 2e-5
    assert "folded: 7 weights of smaller blocks than 128x128, which moves a block by at most" in str(report)
    assert report.as_json()["converted"][0]["fold_error"] == report.converted[0].fold_error
    ids = models.tokens()
    expected = models.logits(models.dequantised(original, tensors, BLOCK), ids)
    found = models.logits(model, ids)
    assert 0 < relative_error(found, expected) < LOGIT_ERROR
    wrong = models.dequantised(original, {**tensors, SCALE: 4 * tensors[SCALE].float()}, BLOCK)
    assert relative_error(models.logits(wrong, ids), expected) > LOGIT_ERROR, "the bound would not see a wrong scale"
    again = tmp_path / "again"
    model.save_pretrained(again)
    saved = json.loads((again / "config.json").read_text())["quantization_config"]
    assert saved["weight_block_size"] == [128, 128] and saved.get("scale_fmt", "float") == "float"
    reloaded, report = load_quantized(again)
    assert torch.equal(models.logits(reloaded, ids), found)
    assert {layer.fold_error for layer in report.converted} == {None} and "folded" not in str(report)


def test_experts_of_96_rows(tmp_path):
    """Gate and up are one weight, whose 128x128 blocks hold rows of both."""
    config = models.deepseek_v3(first_k_dense_replace=1, moe_intermediate_size=96)
    original = models.new_model(config)
    tensors = models.write_checkpoint(tmp_path, original, block_size=BLOCK, edit=spread)
    model, report = load_quantized(tmp_path)
    name = "model.layers.1.mlp.experts"
    assert not report.skipped
    of_experts = [layer for layer in report.converted if name in layer.name]
    assert [layer.name for layer in of_experts] == [f"{name}.gate_up_proj", f"{name}.down_proj"]
    assert all(0 < layer.fold_error < 2e-5 for layer in of_experts)
    block = model.get_submodule(name)
    assert block.gate_up_proj_scale_inv.shape == (4, 2, 2) and tuple(block.block_size) == (128, 128)
    assert sum(layer.bytes_after for layer in of_experts) == sum(each.nbytes for each in block.parameters())
    for expert in range(4):
        parts = [
            values(tensors[f"{name}.{expert}.{each}.weight"], tensors[f"{name}.{expert}.{each}{models.SCALE}"], SMALL)
            for each in ("gate_proj", "up_proj")
        ]
        kept = fp8gemm.Folded(block.gate_up_proj[expert], block.gate_up_proj_scale_inv[expert], 0, 0.0, False)
        assert (of_folded(kept, SMALL) - torch.cat(parts)).norm() < 2e-5 * torch.cat(parts).norm()
    hidden, ids = torch.randn(7, 256), torch.randint(4, (7, 2))
    with torch.no_grad():
        weights = torch.rand(7, 2)
        ours = fp8gemm.nn.Fp8Experts.from_quantized(*block.parameters())
        assert torch.equal(block(hidden, ids, weights), ours(hidden, ids, weights))


def too_far(tensors):
    tensors[SCALE][2, 1] *= 2.0**-9


def no_power(tensors):
    tensors[SCALE][2, 1] *= 1.5


REFUSED = {
    too_far: rf"^{SCALE}: expected blocks of 32x32 .*block \(2, 1\), .*requantize=True",
    no_power: rf"^{SCALE}: expected positive powers of two.* at block \(2, 1\).*requantize=True",
}


@pytest.mark.parametrize("edit", REFUSED, ids=lambda edit: edit.__name__)
def test_what_cannot_be_folded_is_refused_unless_it_is_asked_for(edit, original, tmp_path):
    tensors = models.write_checkpoint(tmp_path, original, block_size=BLOCK, edit=edit)
    with pytest.raises(InputError, match=REFUSED[edit]):
        load_quantized(tmp_path)
    model, report = load_quantized(tmp_path, requantize=True)
    errors = {layer.name: layer.fold_error for layer in report.converted}
    assert errors.pop(NAME) > fp8gemm.products.folding.MOST_ERROR > max(errors.values())
    assert f"of its norm, in {NAME}" in str(report)
    expected = models.logits(models.dequantised(original, tensors, BLOCK), models.tokens())
    assert relative_error(models.logits(model, models.tokens()), expected) < LOGIT_ERROR


def test_scales_of_other_blocks_than_the_config_says(original, tmp_path):
    models.write_checkpoint(tmp_path, original, weight_block_size=[32, 32])
    with pytest.raises(
        InputError, match=r"expected shape \(8, 9\), one scale per 32x32 block of \(256, 272\), got \(2, 3"
    ):
        load_quantized(tmp_path)


def library_layer(k, n):
    codes, scales = fp8gemm.quantize_weight(torch.randn(n, k), block_size=BLOCK)
    layer = models.transformers.integrations.finegrained_fp8.FP8Linear(k, n, block_size=BLOCK)
    layer.weight, layer.weight_scale_inv = torch.nn.Parameter(codes, False), torch.nn.Parameter(scales, False)
    return layer


def test_a_layer_that_is_left_is_not_saved_as_what_it_is_not(original, tmp_path):
    models.write_checkpoint(tmp_path, original, block_size=BLOCK)
    model, _ = load_quantized(tmp_path)
    with torch.no_grad():
        folded, left = (library_layer(256, 64) for _ in range(2))
    left.register_forward_hook(lambda *args: None)
    model.model.layers[0].mlp.folded, model.model.layers[0].mlp.left = folded, left
    model.config.quantization_config.weight_block_size = BLOCK
    report = use_fp8gemm(model)
    assert [each.reason for each in report.skipped] == ["it has hooks or a forward of its own"]
    assert [each.name for each in report.converted] == ["model.layers.0.mlp.folded"]
    with pytest.raises(InputError, match="save_pretrained has none .* left with scales of other blocks"):
        model.save_pretrained(tmp_path / "again")
    assert not list((tmp_path / "again").glob("*.safetensors"))


class Sharded(torch.Tensor):
    """What is not all of a weight, as a DTensor is not."""


def test_a_layer_whose_weight_ranks_share_is_left() -> None:
    theirs = models.transformers.integrations.finegrained_fp8.FP8Linear(256, 128, block_size=BLOCK)
    theirs.weight = torch.nn.Parameter(theirs.weight.detach().as_subclass(Sharded), False)
    report = use_fp8gemm(torch.nn.ModuleDict({"theirs": theirs}))
    assert [each.reason for each in report.skipped] == [
        "its scales are for blocks of (32, 32), and it is sharded (Sharded)"
    ]


def test_a_single_layer_of_the_library() -> None:
    theirs = library_layer(272, 144)
    codes, scales = theirs.weight.detach(), theirs.weight_scale_inv.detach()
    holder = torch.nn.ModuleDict({"theirs": copy.deepcopy(theirs)})
    report = use_fp8gemm(holder)
    x = torch.randn(5, 272, generator=torch.Generator().manual_seed(2))
    assert report.converted[0].fold_error is not None
    assert torch.equal(holder["theirs"](x), Fp8Linear.from_quantized(codes, scales, block_size=BLOCK)(x))
    with pytest.raises(UnsupportedError, match=r"block_size: expected \(128, 128\), got \(32, 32\); use_fp8gemm makes"):
        block_fp8_linear(x, codes, scales, BLOCK)
