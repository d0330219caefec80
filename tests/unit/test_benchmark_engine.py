"""`fp8gemm bench --engine`: the mix, what is asked for, and a run with stand-ins for an engine and a GPU's clock."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fp8gemm.integrations.deep_gemm as our_deep_gemm
from fp8gemm import settings
from fp8gemm.cli import bench as command
from fp8gemm.cli import main as cli
from fp8gemm.errors import InputError
from fp8gemm.lab.bench import engine, engine_mix
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Operands, relative_error
from fp8gemm.lab.bench.report import Row, Shape
from tests.unit.test_benchmark_linear import on_the_cpu, options  # noqa: F401  # a fixture

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "num_hidden_layers": 2,
}


def test_the_mix_is_what_its_page_says() -> None:
    rows = engine_mix.drawn(7)
    assert rows == engine_mix.drawn(7) != engine_mix.drawn(8) and sum(rows.values()) == engine_mix.STEPS
    assert list(rows) == sorted(rows) and set(rows) == {*engine_mix.BATCHES, *engine_mix.CHUNKS}
    decode = sum(rows[m] for m in engine_mix.BATCHES) / engine_mix.STEPS
    assert 0.85 < decode < 0.95
    assert max(rows[m] for m in engine_mix.BATCHES) < 2.5 * min(rows[m] for m in engine_mix.BATCHES)


def test_a_shape_counts_as_often_as_the_mix_has_it() -> None:
    mix = engine_mix.Mix({1: 3, 8: 1}, {(64, 128): 2, (128, 64): 1}, "vllm")
    assert mix.shapes() == [Shape(1, 64, 128), Shape(1, 128, 64), Shape(8, 64, 128), Shape(8, 128, 64)]
    assert mix.lines([]) == [] and "us" not in mix.as_json([])
    rows = [
        Row(Shape(1, 64, 128), us={"fp8_linear": 1.0, "vllm": 2.0}),
        Row(Shape(8, 128, 64), us={"fp8_linear": 10.0, "vllm": 5.0}),
        Row(Shape(8, 64, 128), us={"fp8_linear": 100.0}, failed={"vllm": "no"}),
    ]
    found = mix.as_json(rows)
    assert found["us"] == {"fp8_linear": 16.0, "vllm": 17.0} and found["relative_speed"] == 1.0625
    assert found["shapes"] == 2 and found["rows"] == {"1": 3, "8": 1} and len(found["layers"]) == 2
    heading, line = mix.lines(rows)
    assert heading.endswith("512 steps of one block of layers, 2 of 4 shapes")
    assert line == "fp8_linear 0.02 ms, vllm 0.02 ms: 1.062 of vllm"


def test_layers_of_a_model_or_as_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    mix = command.mix_of(options("--engine", "vllm", "--model", str(path)), 3)
    assert mix.layers == {(256, 128): 1, (128, 128): 1, (384, 128): 1, (128, 192): 1} and mix.engine == "vllm"
    mix = command.mix_of(options("--engine", "sglang", "--nk", "64x128,64x128"), 3)
    assert mix.layers == Counter({(64, 128): 2}) and mix.rows == engine_mix.drawn(3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "vllm"], "expected --model, whose mix has rows of its own, or --nk beside --engine"),
        (["--engine", "vllm", "--nk", "64x128", "--model", "x"], "expected --model, whose mix has rows of its own, or"),
        (["--engine", "vllm", "--model", "x", "--m", "1"], "expected --model, whose mix has rows of its own, or"),
        (["--engine", "vllm", "--nk", "64x128", "--regime", "burst"], "expected no --regime beside --engine without"),
        (["--engine", "vllm", "--nk", "64x128", "--pdl"], "expected neither --pdl nor --floor beside --engine"),
        (["--model", "x"], "expected --engine beside --model and --tp"),
        (["--tp", "2"], "expected --engine beside --model and --tp"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        command.check_options(options(*arguments))


def test_an_engine_whose_products_are_ours_is_not_measured() -> None:
    with settings.scope(engines=True), pytest.raises(InputError, match="expected FP8GEMM_ENGINES=0 beside --engine"):
        command.check_options(options("--engine", "vllm", "--nk", "64x128"))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepGEMM's and SGLang's functions that are called, on the CPU."""

    def linear(x: torch.Tensor, weight: torch.Tensor, block: list[int], scales: torch.Tensor) -> torch.Tensor:
        assert block == [128, 128]
        out = x.new_empty(x.shape[0], weight.shape[0])
        our_deep_gemm.fp8_gemm_nt(our_deep_gemm.per_token_cast_to_fp8(x, False), (weight, scales), out)
        return out

    sglang, deep_gemm = ModuleType("fp8_utils"), ModuleType("deep_gemm")
    sglang.dispatch_w8a8_block_fp8_linear = lambda block: linear  # type: ignore[attr-defined]
    deep_gemm.fp8_gemm_nt = our_deep_gemm.fp8_gemm_nt  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.quantization"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.quantization.fp8_utils", sglang)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("name", ["sglang", "deep_gemm"])
def test_an_engines_layer_gives_the_product(name: str) -> None:
    peer = engine.ENGINES[name]
    assert peer.why_missing() == "" and tuple(engine.ENGINES) == engine_mix.NAMES
    operands = Operands.random(12, 192, 256, torch.Generator().manual_seed(7))
    result = peer.prepare(operands)()
    assert result.dtype == torch.bfloat16
    assert relative_error(result, operands.product()) < MAX_RELATIVE_ERROR


@pytest.mark.usefixtures("on_the_cpu", "stand_ins")
def test_a_run_beside_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "drawn", lambda seed: Counter({1: 500, 16: 12}))
    path = tmp_path / "mix.json"
    arguments = ["bench", "--nk", "64x128", "--warm-seconds", "0", "--rounds", "1", "--json", str(path)]
    assert cli.main([*arguments, "--engine", "sglang"]) == 0
    written = json.loads(path.read_text())
    assert set(written["peers"]) == {"fp8_linear", "sglang"} and len(written["rows"]) == 2
    assert written["mix"]["relative_speed"] == 1.0 and written["mix"]["shapes"] == 2
    assert {row["regime"] for row in written["rows"]} == {"turn"}
    assert "serving mix, 512 steps of one block of layers, 2 of 2 shapes" in capsys.readouterr().out

    assert cli.main([*arguments, "--engine", "vllm"]) == 0
    written = json.loads(path.read_text())
    assert set(written["peers"]) == {"fp8_linear"} and "cannot be imported" in written["skipped"]["vllm"]
    assert "us" not in written["mix"]

    assert cli.main([*arguments, "--engine", "sglang", "--m", "3,600"]) == 0
    written = json.loads(path.read_text())
    assert set(written["peers"]) == {"fp8_linear", "sglang"} and "mix" not in written
    assert [(row["m"], row["regime"]) for row in written["rows"]] == [(3, "turn"), (600, "burst"), (600, "sustained")]
    assert cli.main([*arguments, "--engine", "vllm", "--m", "3"]) != 0  # ours is behind vLLM's layer
    assert "--engine vllm: " in capsys.readouterr().err
