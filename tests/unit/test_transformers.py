"""Models of transformers on fp8gemm, on the CPU: loaded from checkpoints on disk, and quantised as they are loaded."""

from __future__ import annotations

import copy
import json
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fp8gemm.errors import InputError
from fp8gemm.integrations.transformers import load_quantized, use_fp8gemm
from fp8gemm.lab.bench.operands import relative_error
from fp8gemm.nn import Fp8Linear
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.reference import gemm_reference
from tests import transformers_models as models  # skips where transformers is missing

transformers = models.transformers
QWEN3 = {"scale_dtype": torch.bfloat16, "keep": ("lm_head", "model.layers.1.mlp.down_proj")}
LOGIT_ERROR = 0.1
FORMATS = {
    "deepseek-v3": (models.deepseek_v3, {}, 16),
    "qwen3-fp8": (models.qwen3, QWEN3, 13),
    "qwen3 with biases": (lambda: models.qwen3(attention_bias=True), {}, 14),
}


@pytest.fixture(scope="module", params=FORMATS)
def loaded(request, tmp_path_factory):
    """The model that was written, what was written, the model that was read and its report."""
    make_config, options, layers = FORMATS[request.param]
    path = tmp_path_factory.mktemp("checkpoint")
    original = models.new_model(make_config())
    tensors = models.write_checkpoint(path, original, **options)
    model, report = load_quantized(path)
    return original, tensors, model, report, layers


def test_every_fp8_layer_of_the_checkpoint_is_ours(loaded):
    _, tensors, model, report, layers = loaded
    names = {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    assert names == {name.removesuffix(models.SCALE) for name in tensors if name.endswith(models.SCALE)}
    assert {layer.name for layer in report.converted} == names and len(names) == layers
    assert not report.skipped and json.dumps(report.as_json())
    state = model.state_dict()
    for name in names:
        assert torch.equal(state[f"{name}.weight"].view(torch.uint8), tensors[f"{name}.weight"].view(torch.uint8))
        scales = state[name + models.SCALE]
        assert scales.dtype == torch.float32 and torch.equal(scales, tensors[name + models.SCALE].float())


def test_each_layer_is_bitwise_the_reference(loaded):
    *_, model, _, layers = loaded
    checked = []

    def check(layer, args, output):
        x = args[0].reshape(-1, layer.in_features)
        expected = gemm_reference(
            *quantize_activation(x), layer.weight, layer.weight_scale_inv, bias=layer.bias, out_dtype=x.dtype
        )
        assert torch.equal(output, expected.view_as(output))
        checked.append(layer)

    hooks = [m.register_forward_hook(check) for m in model.modules() if isinstance(m, Fp8Linear)]
    models.logits(model, models.tokens())
    for hook in hooks:
        hook.remove()
    assert len(checked) == layers


def test_logits_are_those_of_the_dequantised_model_but_for_the_activations(loaded):
    original, tensors, model, *_ = loaded
    ids = models.tokens(4, 32)
    expected = models.logits(models.dequantised(original, tensors), ids)
    found = models.logits(model, ids)
    assert found.dtype == torch.bfloat16
    # Rounding its input to e4m3 moves a product by about 3 % (rms); the layers together measured 5 %.
    assert 0 < relative_error(found, expected) < LOGIT_ERROR
    name = "model.layers.0.mlp.up_proj"
    wrong = models.dequantised(original, {**tensors, name + models.SCALE: 1.5 * tensors[name + models.SCALE].float()})
    assert relative_error(models.logits(wrong, ids), expected) > LOGIT_ERROR, "the bound would not see a wrong scale"


def test_forward_pass_that_records_gradients_says_what_to_do(loaded):
    *_, model, _, _ = loaded
    with pytest.raises(InputError, match=r"torch\.no_grad"):
        model(models.tokens())


@pytest.mark.skipif(
    torch.__version__ < "2.7", reason="torch 2.6 does not trace transformers' own wrapper of a forward pass"
)
def test_compiles_without_a_graph_break(loaded, monkeypatch):
    *_, model, _, _ = loaded
    ids = models.tokens()
    # With torch 2.8 the other attention has other bits when it is traced, in a plain bfloat16 model as well.
    monkeypatch.setattr(model.config, "_attn_implementation", "eager")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(models.logits(compiled, ids), models.logits(model, ids))


def test_generates_and_saves_what_loads_again(loaded, tmp_path):
    *_, model, _, _ = loaded
    ids = models.tokens(1, 5)
    generated = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert generated.shape == (1, 9)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert saved["quant_method"] == "fp8" and list(saved["weight_block_size"]) == [128, 128]
    again, _ = load_quantized(tmp_path)
    assert torch.equal(models.logits(again, ids), models.logits(model, ids))


@pytest.fixture
def no_gpu_asked_for(monkeypatch):
    models.ask_for_no_gpu(monkeypatch)


def quantised_by_the_library(path, config, **options):
    """A model that was quantised as it was loaded, and its projections by name."""
    models.new_model(config).save_pretrained(path)
    options = {"quantization_config": transformers.FineGrainedFP8Config(**options)}
    model = transformers.AutoModelForCausalLM.from_pretrained(path, **options)
    return model, {name: module for name, module in model.named_modules() if name.endswith("proj")}


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"] if hasattr(torch, "float8_e8m0fnu") else ["float"])
def test_model_that_the_library_quantised_shares_its_weights(scale_fmt, no_gpu_asked_for, tmp_path):
    config = models.qwen3(num_key_value_heads=4, intermediate_size=384)
    model, before = quantised_by_the_library(tmp_path, config, scale_fmt=scale_fmt)
    report = use_fp8gemm(model)
    assert {layer.name for layer in report.converted} == before.keys() and not report.skipped
    for name, old in before.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, Fp8Linear) and layer.weight.data_ptr() == old.weight.data_ptr()
        assert layer.weight_scale_inv.dtype == torch.float32
        assert torch.equal(layer.weight_scale_inv, old.weight_scale_inv.float())
        assert not layer.training and not layer.weight.requires_grad
    assert models.logits(model, models.tokens()).isfinite().all()
    wider = 0 if scale_fmt == "float" else sum(3 * old.weight_scale_inv.numel() for old in before.values())
    assert report.bytes_after - report.bytes_before == wider
    again = use_fp8gemm(model)
    assert not again.converted and not again.skipped


def test_weights_that_the_library_could_not_quantise(no_gpu_asked_for, tmp_path):
    """Releases differ: such a weight stays as it was, or is cast to FP8 and has no scales, which nothing can mend."""
    model, before = quantised_by_the_library(tmp_path, models.qwen3())
    odd = {name: module for name, module in before.items() if any(size % 128 for size in module.weight.shape)}
    assert 0 < len(odd) < len(before)
    if any(module.weight.dtype == torch.float8_e4m3fn for module in odd.values()):
        with pytest.raises(InputError, match=r"layers\.0\..*_proj\.weight_scale_inv: expected scales, got none"):
            use_fp8gemm(model)
        assert all(model.get_submodule(name) is module for name, module in before.items())
    else:
        report = use_fp8gemm(model)
        left = {(layer.name, layer.reason) for layer in report.skipped}
        assert left == {(name, "its weight is torch.bfloat16") for name in odd}
        assert {layer.name for layer in report.converted} == before.keys() - odd.keys()
        assert models.logits(model, models.tokens()).isfinite().all()


@pytest.mark.parametrize("shape", [(144, 256), (128, 272)])
def test_codes_without_scales_are_refused(shape):
    """What the test above meets with some releases only."""
    model = nn.ModuleDict({"whole": layer(), "odd": layer(k=shape[1], n=shape[0])})
    assert len(use_fp8gemm(copy.deepcopy(model)).converted) == 2, "a checkpoint may well hold such a layer"
    model.hf_quantizer = SimpleNamespace(pre_quantized=False)
    with pytest.raises(InputError, match=r"odd\.weight_scale_inv: expected scales, got none"):
        use_fp8gemm(model)
    model.hf_quantizer.pre_quantized = True
    assert len(use_fp8gemm(model).converted) == 2


def test_checkpoint_that_the_library_loaded(no_gpu_asked_for, tmp_path):
    models.write_checkpoint(tmp_path, models.new_model(models.deepseek_v3()))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert len(use_fp8gemm(model).converted) == 16
    ours, _ = load_quantized(tmp_path)
    assert torch.equal(models.logits(model, models.tokens()), models.logits(ours, models.tokens()))


def test_model_without_fp8_layers_is_an_error():
    with pytest.raises(InputError, match="got none.*load_quantized.*nn.convert"):
        use_fp8gemm(models.new_model(models.qwen3()))
    with pytest.raises(InputError, match="got a layer"):
        use_fp8gemm(transformers.integrations.finegrained_fp8.FP8Linear(128, 128, block_size=(128, 128)))


def layer(k=256, n=128, **options):
    """The library's layer with random codes and scales."""
    made = transformers.integrations.finegrained_fp8.FP8Linear(k, n, **{"block_size": (128, 128), **options})
    made.weight.data = torch.randn(n, k).to(torch.float8_e4m3fn)
    made.weight_scale_inv.data = torch.rand_like(made.weight_scale_inv.float()) + 0.5
    return made


def hooked():
    made = layer()
    made.register_forward_pre_hook(lambda module, args: None)
    return made


def offloaded():
    made = layer()
    made._hf_hook = SimpleNamespace(offload=True)
    return made


LEFT = {
    "blocks": (lambda: layer(block_size=(48, 48)), r"blocks of \(48, 48\), of which \(128, 128\) cannot"),
    "per tensor": (lambda: layer(block_size=None), "blocks of None"),
    "static": (lambda: layer(activation_scheme="static"), "activation scales are static"),
    "K": (lambda: layer(k=264), "K is not a multiple of 16"),
    "hook": (hooked, "it has hooks"),
    "offload": (offloaded, "offloaded or not loaded"),
    "meta": (lambda: layer().to("meta"), "offloaded or not loaded"),
}


@pytest.mark.parametrize("kind", LEFT)
def test_layers_that_are_left_and_why(kind):
    make, reason = LEFT[kind]
    model = nn.ModuleDict({"ours": layer(), "theirs": make()})
    theirs = model["theirs"]
    report = use_fp8gemm(model, max_m=64, batch_invariant=True)
    (left,) = report.skipped
    assert left.name == "theirs" and model["theirs"] is theirs
    assert re.search(reason, left.reason)
    assert isinstance(model["ours"], Fp8Linear) and model["ours"].max_m == 64 and model["ours"].batch_invariant


def test_hooks_that_place_inputs_go_with_the_layer():
    """As accelerate attaches them to every layer of a model that it spreads over several GPUs."""
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")
    model = nn.ModuleDict({"a": layer()})
    hooks.add_hook_to_module(model["a"], hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True))
    weight = model["a"].weight
    assert len(use_fp8gemm(model).converted) == 1
    new = model["a"]
    assert isinstance(new, Fp8Linear) and new.weight.data_ptr() == weight.data_ptr()
    x = torch.randn(3, 256)
    found = new(x)
    assert new._hf_hook.input_device == x.device, "the hook ran"
    assert torch.equal(found, Fp8Linear.forward(new, x))


def test_layer_in_two_places_stays_one():
    shared = layer()
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": shared})
    report = use_fp8gemm(model)
    assert model["a"][0] is model["b"] and isinstance(model["b"], Fp8Linear)
    assert [entry.name for entry in report.converted] == ["a.0"]


BAD_SCALES = {
    "shape": (lambda scales: scales.t().contiguous(), r"model\.weight_scale_inv: expected .*transposed"),
    "dtype": (lambda scales: scales.half(), r"model\.weight_scale_inv: expected .*float16"),
    "nan": (lambda scales: scales * float("nan"), r"model\.weight_scale_inv: expected finite"),
    "negative": (lambda scales: -scales, r"model\.weight_scale_inv: expected .*at least 0"),
}


@pytest.mark.parametrize("kind", BAD_SCALES)
def test_scales_that_cannot_be_right_change_nothing(kind):
    spoil, message = BAD_SCALES[kind]
    model = nn.ModuleDict({"first": layer(), "model": layer()})
    model["model"].weight_scale_inv.data = spoil(model["model"].weight_scale_inv.data)
    before = dict(model.items())
    with pytest.raises(InputError, match=message):
        use_fp8gemm(model)
    assert dict(model.items()) == before
