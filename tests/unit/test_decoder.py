"""The benchmark's decoder on the CPU: its steps against transformers' own, what is timed, what the script writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.lab.bench import decoder, decoder_model
from fp8gemm.lab.bench.graph import Rounds, WrongResultError
from fp8gemm.lab.bench.load import Load
from tests.scripts import load_script

pytest.importorskip("transformers", reason="transformers is not installed")

SHAPE = decoder_model.DecoderShape(
    hidden=512, intermediate=1024, layers=3, heads=8, kv_heads=4, head_dim=128, vocabulary=500
)


@pytest.fixture(scope="module")
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="module")
def models(generator: torch.Generator) -> dict[str, Any]:
    bf16 = decoder_model.build_decoder(SHAPE, generator)
    return {decoder.BF16: bf16, decoder.FP8: decoder_model.converted_copy(bf16)}


@torch.no_grad()
def test_steps_give_the_logits_that_the_model_gives(models: dict[str, Any], generator: torch.Generator) -> None:
    from transformers import DynamicCache

    model = models[decoder.BF16]
    inputs = decoder_model.StepInputs.prefill(SHAPE, batch=2, tokens=9, generator=generator)
    expected = model(inputs.ids).logits[:, -1:]
    assert torch.equal(decoder_model.decoder_step(model, inputs), expected)

    cache = DynamicCache()
    model(inputs.ids[:, :-1], past_key_values=cache)
    slots = [
        decoder_model.Slot(*(torch.cat([t, torch.full_like(t[:, :, :1], 9.0)], 2) for t in (each.keys, each.values)))
        for each in cache.layers
    ]
    last = decoder_model.StepInputs(inputs.ids[:, -1:], inputs.positions[:, -1:], slots)
    for _ in range(2):  # the new token is written over, not appended
        logits = decoder_model.decoder_step(model, last)
        assert logits.shape == (2, 1, SHAPE.vocabulary)
        torch.testing.assert_close(logits, expected, atol=0.03, rtol=0)


def test_the_copy_has_fp8_layers_and_the_same_rest(models: dict[str, Any]) -> None:
    bf16, fp8 = (decoder_model.layer_bytes(models[name]) for name in (decoder.BF16, decoder.FP8))
    assert 0.5 < fp8 / bf16 < 0.51, "only the norms and the scales are not of one byte"
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert torch.equal(*(model.get_parameter(name) for model in models.values()))
    whole = decoder_model.weight_bytes(models[decoder.BF16])
    assert whole == bf16 + 2 * (2 * SHAPE.vocabulary * SHAPE.hidden + SHAPE.hidden)


def bench(models: dict[str, Any], generator: torch.Generator, said: list[str]) -> decoder.DecoderBench:
    return decoder.DecoderBench(
        models,
        SHAPE,
        generator,
        Rounds(rounds=2, warm_seconds=0, load=Load()),
        measure_ms=1,
        variants=decoder.VARIANTS,
        emit=said.append,
    )


def test_one_compiled_layer_serves_all_and_a_failure_leaves_the_others(
    models: dict[str, Any], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        names = {str(node.target) for node in graph.graph.nodes}
        compiled.append("fp8" if any("fp8gemm" in name for name in names) else "bf16")
        return graph.forward

    def layer(*, merge: bool) -> decoder_model.RunLayer:
        return torch.compile(decoder_model.run_layer, fullgraph=True, dynamic=False, backend=backend)

    said: list[str] = []
    monkeypatch.setattr(decoder, "compiled_layer", layer)
    for step in decoder.steps_of(prefill=8, batches=[2], context=6):
        row = bench(models, generator, said).measure(step)
        assert set(row.us) == set(decoder.VARIANTS) and row.failed == {}
        assert row.difference["bf16"] == 0 < row.difference["fp8"] < 0.2
    assert compiled == ["bf16", "fp8"] * 2, "each once, whatever the number of layers"
    assert len(said) == 10 and said[0].startswith("prefill 1x8: bf16 ready after ")

    def broken(*, merge: bool) -> decoder_model.RunLayer:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(decoder, "compiled_layer", broken)
    row = bench(models, generator, said).measure(decoder.Step(decoder.DECODE, 1, 1, 4))
    assert set(row.us) == {"bf16", "fp8"}
    assert row.failed == dict.fromkeys(("bf16_compiled", "fp8_compiled", "fp8_merged"), "RuntimeError: no compiler")
    line = decoder.DecoderTable().line(row)
    assert line.count("|") == decoder.DecoderTable().header().count("|") and line.endswith(f"{'-':>15}")


def test_logits_of_another_model_have_no_time(models: dict[str, Any], generator: torch.Generator) -> None:
    other = {**models, decoder.FP8: decoder_model.build_decoder(SHAPE, generator)}
    row = bench(other, generator, []).measure(decoder.Step(decoder.PREFILL, 1, 4, 4))
    assert "fp8" not in row.us and row.failed["fp8"].startswith(WrongResultError.__name__)


def test_a_row_says_speed_and_tokens() -> None:
    step = decoder.Step(decoder.DECODE, 16, 1, 128)
    row = decoder.DecoderRow(step, us={"bf16": 6000.0, "fp8": 4000.0})
    assert row.speed("as written") == 1.5 and row.speed("compiled layers") is None
    written = row.as_json()
    assert written["ms"] == {"bf16": 6.0, "fp8": 4.0} and written["tokens_per_s"]["fp8"] == 4000.0
    judged = decoder.GATES.as_json([row])
    assert list(judged) == ["speed of decode, as written"] and judged["speed of decode, as written"]["met"]


def test_steps() -> None:
    steps = decoder.steps_of(prefill=2048, batches=[1, 16], context=128)
    assert list(map(str, steps)) == ["prefill 1x2048", "decode 1x1", "decode 16x1"]
    assert [step.kind for step in decoder.steps_of(prefill=0, batches=[1], context=2)] == [decoder.DECODE]


@pytest.mark.parametrize("printed", [False, True])
def test_the_script_on_the_cpu(printed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.json"
    sizes = "--layers 1 --hidden 512 --intermediate 512 --vocabulary 100 --heads 4 --kv-heads 4"
    steps = "--prefill 4 --batches 1 --context 4 --rounds 1 --measure-ms 1 --warm-seconds 0 --device cpu --seed 5"
    words = [*sizes.split(), *steps.split(), "--json", *([] if printed else [str(path)])]
    assert load_script("decoder").main(words) == 0
    out, err = capsys.readouterr()
    written = json.loads(out if printed else path.read_text())
    assert [row["kind"] for row in written["rows"]] == ["prefill", "decode"]
    assert set(written["variants"]) == {"bf16", "fp8"} and written["seed"] == 5
    assert written["layer_bytes"]["fp8"] < 0.51 * written["layer_bytes"]["bf16"]
    assert "GB in its layers" in (err if printed else out)
