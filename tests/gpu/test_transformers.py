"""Models that transformers loads onto the GPU, on fp8gemm: each layer, whole models, and that library's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.integrations.transformers import installed_kernel, kernel, load_quantized, use_fp8gemm
from fp8gemm.lab.bench.operands import relative_error
from fp8gemm.nn import Fp8Linear
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.reference import gemm_magnitude, gemm_reference
from tests import transformers_models as models  # skips where transformers is missing

pytest.importorskip("accelerate", reason="accelerate is not installed, and transformers loads no FP8 model without it")

transformers = models.transformers
WIDE = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": models.VOCABULARY}
MODELS = {
    "qwen3": lambda **changes: models.qwen3(**{**WIDE, "head_dim": 128, "intermediate_size": 2064, **changes}),
    "deepseek-v3": lambda **changes: models.deepseek_v3(**{**WIDE, "v_head_dim": 128, "q_lora_rank": 384, **changes}),
}
# Two roundings of a layer's output to bfloat16 apart, hidden states quantise to other codes here and there: 0.050 to
# 0.056 on an H200 (2026-11-22). What a wrong scale or wrong codes do is 0.2 and more.
SAME_MODEL = 0.08


def assert_near_the_reference(found: Tensor, x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
    """Within the output's rounding, and what 13 bits of fraction in the tensor cores make of a sum."""
    rows = *quantize_activation(x.reshape(-1, x.shape[-1])), weight, scales.float()
    expected = gemm_reference(*rows, bias=bias, out_dtype=torch.float64)
    bound = expected.abs() * 2**-8 + gemm_magnitude(*rows, bias=bias) * 2**-9
    error = (found.reshape(expected.shape).double() - expected).abs()
    worst = int((error - bound).argmax())
    assert (error <= bound).all(), f"element {worst}: off by {error.flatten()[worst]}, allowed {bound.flatten()[worst]}"


def count_checked_layers(model, ids) -> int:
    """Run ``model`` with every layer of ours held to the reference; how many ran."""
    checked = []

    def check(layer, args, output):
        assert_near_the_reference(output, args[0], layer.weight, layer.weight_scale_inv, layer.bias)
        checked.append(layer)

    hooks = [m.register_forward_hook(check) for m in model.modules() if isinstance(m, Fp8Linear)]
    models.logits(model, ids)
    for hook in hooks:
        hook.remove()
    return len(checked)


def from_pretrained(path, device, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(path, device_map={"": device.index}, **options)


@pytest.mark.parametrize("kind", MODELS)
def test_checkpoint(kind, device, tmp_path):
    """The model on the GPU computes what the reference backend computes of the same checkpoint on the CPU."""
    models.write_checkpoint(tmp_path, models.new_model(MODELS[kind]()), scale_dtype=torch.bfloat16)
    model = from_pretrained(tmp_path, device)
    allocated = torch.cuda.memory_allocated(device)
    report = use_fp8gemm(model)
    assert torch.cuda.memory_allocated(device) - allocated < 2**20, "weights are shared, not copied"
    assert not report.skipped and len(report.converted) == {"qwen3": 14, "deepseek-v3": 16}[kind]
    on_cpu, _ = load_quantized(tmp_path)
    for rows, length in ((1, 1), (1, 7), (2, 33)):
        ids = models.tokens(rows, length)
        assert count_checked_layers(model, ids.to(device)) == len(report.converted)
        found = models.logits(model, ids.to(device))
        assert found.dtype == torch.bfloat16
        assert relative_error(found.cpu(), models.logits(on_cpu, ids)) < SAME_MODEL


@pytest.mark.parametrize("kind", MODELS)
def test_generate(kind, device, tmp_path):
    models.write_checkpoint(tmp_path, models.new_model(MODELS[kind]()))
    model = from_pretrained(tmp_path, device)
    use_fp8gemm(model, max_m=64)
    ids = models.tokens(2, 9).to(device)
    # Without a mask the tokens that look like padding would be masked.
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
    options |= {"max_new_tokens": 8, "do_sample": False}
    generated = model.generate(ids, **options)
    assert generated.shape == (2, 17) and torch.equal(generated[:, :9], ids)
    assert torch.equal(model.generate(ids, **options), generated)
    # The first new token is the likeliest one, or one as likely to within the error.
    last = models.logits(model, ids)[:, -1].float()
    chosen = last.gather(1, generated[:, 9:10])
    assert (last.amax(1, keepdim=True) - chosen <= SAME_MODEL * last.std()).all()


def test_model_quantised_as_it_is_loaded(device, tmp_path):
    original = models.new_model(MODELS["qwen3"](intermediate_size=2048))
    original.save_pretrained(tmp_path)
    model = from_pretrained(tmp_path, device, quantization_config=transformers.FineGrainedFP8Config())
    report = use_fp8gemm(model)
    assert len(report.converted) == 14 and not report.skipped
    ids = models.tokens(2, 21)
    assert count_checked_layers(model, ids.to(device)) == 14
    found = models.logits(model, ids.to(device))
    with settings.scope(backend="reference"):
        assert relative_error(found, models.logits(model, ids.to(device))) < SAME_MODEL
    # The weights' quantisation on top of the activations': 0.156 on an H200 (2026-11-22).
    assert relative_error(found.float().cpu(), models.logits(original.float(), ids)) < 0.2


def test_model_with_experts_on_the_installed_kernel(device, tmp_path, monkeypatch):
    """Layers stay the library's; with eager experts every FP8 product of the model comes to fp8gemm."""
    original = models.new_model(MODELS["deepseek-v3"](first_k_dense_replace=1, intermediate_size=512))
    models.write_checkpoint(tmp_path, original)
    model = from_pretrained(tmp_path, device)
    model.set_experts_implementation("eager")
    ours, calls = kernel.block_fp8_linear, []

    def checked(x, weight, scales, block_size, bias, activation_scale):
        out = ours(x, weight, scales, block_size, bias, activation_scale)
        assert_near_the_reference(out, x, weight, scales, bias)
        calls.append(weight)
        return out

    monkeypatch.setattr(kernel, "block_fp8_linear", checked)
    ids = models.tokens(2, 21).to(device)
    with installed_kernel():
        expected = models.logits(model, ids)
    assert len(calls) > 20, "five projections, MLP and experts"
    report = use_fp8gemm(model)
    assert not report.skipped
    with installed_kernel():
        assert relative_error(models.logits(model, ids), expected) < SAME_MODEL


def test_against_the_kernel_of_the_library(device, tmp_path, say):
    """Where that library can load a kernel of its own; without one the tests above hold ours to the reference."""
    models.write_checkpoint(tmp_path, models.new_model(MODELS["qwen3"]()))
    model = from_pretrained(tmp_path, device)
    ids = models.tokens(2, 21).to(device)
    try:
        theirs = models.logits(model, ids)
    except ImportError as error:
        say(f"transformers {transformers.__version__} has no FP8 kernel of its own here: {error}")
        pytest.skip("transformers cannot load an FP8 kernel of its own")
    use_fp8gemm(model)
    assert relative_error(models.logits(model, ids), theirs) < SAME_MODEL


def test_moved_from_the_cpu(device, tmp_path):
    """`load_quantized` without a device, then ``.to``; codes and scales arrive as they were."""
    models.write_checkpoint(tmp_path, models.new_model(MODELS["qwen3"]()))
    model, report = load_quantized(tmp_path)
    ids = models.tokens(2, 5)
    expected = models.logits(model, ids)
    model.to(device)
    assert count_checked_layers(model, ids.to(device)) == len(report.converted)
    assert relative_error(models.logits(model, ids.to(device)).cpu(), expected) < SAME_MODEL
