"""The benchmarks of linear layers run through on a GPU, at a size or two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fp8gemm.cli import main as cli
from fp8gemm.lab.bench import host
from tests.scripts import load_script


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("--linear", {"fp8_linear", "bf16_linear"}),
        (
            "--quantize",
            {"activation", "activation_f16", "activation_f32", "weight", "with_transpose"}
            | {"silu_mul", "rms_norm", "add_rms_norm"},
        ),
        ("--host", set(host.PREPARE)),
    ],
)
def test_a_mode_times_everything(tmp_path: Path, device: torch.device, mode: str, names: set[str]) -> None:
    path = tmp_path / "bench.json"
    arguments = [mode, "--m", "16", "--nk", "512x1024", "--warm-seconds", "0", "--rounds", "2", "--measure-ms", "1"]
    assert cli.main(["bench", *arguments, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert set(row["us"]) == names and all(us > 0 for us in row["us"].values())


def test_a_decoder_is_timed_in_graphs(tmp_path: Path, device: torch.device) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    path = tmp_path / "decoder.json"
    sizes = "--layers 2 --hidden 512 --intermediate 1024 --vocabulary 100 --heads 8 --kv-heads 4"
    steps = "--prefill 64 --batches 1,3 --context 16 --rounds 2 --measure-ms 1 --warm-seconds 0"
    assert load_script("decoder").main([*sizes.split(), *steps.split(), "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 3 and all(set(row["ms"]) == {"bf16", "fp8"} for row in rows)
