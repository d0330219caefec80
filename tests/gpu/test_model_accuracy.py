"""A network in FP8 on a GPU: the gates of `fp8gemm.lab.accuracy.embeddings`, the reference backend's among them."""

from __future__ import annotations

import pytest
import torch

from fp8gemm import settings
from fp8gemm.lab.accuracy import encoder
from fp8gemm.lab.accuracy.embeddings import compare_embeddings
from fp8gemm.lab.accuracy.model import CPU, FORMS, ModelReport, measure_model
from tests.minilm import SENTENCES, model_folder


@pytest.fixture(scope="module")
def report(device) -> ModelReport:
    return measure_model(model_folder(), encoder.read_sentences(SENTENCES), device)


def test_fp8_passes_the_gates_on_every_sentence(report, say):
    say("\n".join(report.lines()))
    assert set(report.agreement) == set(FORMS)
    assert report.failures() == []


def test_it_was_compared_with_the_reference_backend_here_and_on_the_cpu(report):
    """And with no copy of itself: kernels and reference differ in some bit of some sentence."""
    assert set(report.reference) == {"cuda", "cpu"}
    for found in report.reference.values():
        assert found.free <= found.same_codes < 1


def test_every_layer_has_the_noise_of_its_format(report):
    assert len(report.layers) == 36
    for layer in report.layers:
        assert 26 < layer.sqnr_db["fp8"] < 46 and 48 < layer.sqnr_db["bf16"] < 60, layer


def test_a_network_moved_to_the_gpu_is_the_one_made_there(device):
    """The same codes and scales, so the same embeddings, bit for bit."""
    folder = model_folder()
    batches = encoder.load_batches(folder, encoder.read_sentences(SENTENCES)[:64], device)
    made = encoder.in_fp8(encoder.load_network(folder, device))
    with settings.scope(backend="reference"):
        moved = encoder.in_fp8(encoder.load_network(folder, CPU))
    embedded = [encoder.embed(network, batches) for network in (made, moved.to(device))]
    assert torch.equal(*embedded) and compare_embeddings(*embedded).cosine_min == 1
