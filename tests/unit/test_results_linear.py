"""The sections on linear layers, drawn from made-up results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import load_script

results = load_script("results")

H200: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "date": "2026-01-02",
    "torch": "2.11",
    "driver_cuda": "13.0",
    "method": "medians",
    "seed": 7,
}
GATE = {"figure": 1.6, "limit": 1.5, "bound": "at least", "met": True, "mean": True, "worst": 1.2, "at": "512x64x128"}
MISSED = {**GATE, "figure": 3.25, "limit": 3.0, "bound": "at most", "met": False, "mean": False, "worst": 3.25}
GATES = {"gates": {"speed at M >= 512": {**GATE, "count": 36}, "microseconds": {**MISSED, "count": 7}}}
SAID = (
    "- speed at M >= 512: geometric mean of 36 1.60, at least 1.5 is asked: met; the worst is 1.20 at 512x64x128.\n"
    "- microseconds: worst of 7 3.25, at most 3 is asked: **not met**, at 512x64x128."
)


def draw(name: str, result: dict[str, Any]) -> str:
    lines = results.SECTIONS[name].draw(result)
    assert not [line for line in lines if "\n" in line or line != line.rstrip()]
    return "\n".join(lines)


def linear_result() -> dict[str, Any]:
    """Two M of two layers; at M = 512 of the second, bfloat16 has no time."""
    rows = []
    for m in (1, 512):
        for n, bf16 in ((256, 12.0), (64, 20.0)):
            us = {"fp8_linear": 10.0, "bf16_linear": bf16}
            rows.append({"m": m, "n": n, "k": 128, "us": us, "config": "a"})
    del rows[-1]["us"]["bf16_linear"]
    return {**H200, **GATES, "rows": rows}


def test_linear_layers_are_drawn_by_m_and_by_shape() -> None:
    text = draw("linear", linear_result())
    assert text.startswith("NVIDIA H200, 2026-01-02, torch 2.11, driver for CUDA 13.0. Medians.\n")
    assert "geometric mean over 2 N x K" in text
    assert "| 1 | 1.55 (1.20 to 2.00) |\n| 512 | 1.20 (1.20 to 1.20, 1 of 2) |" in text
    assert text.endswith(SAID)
    text = draw("linear_shapes", linear_result())
    assert "| M | 64 x 128 | 256 x 128 |" in text
    assert text.endswith("| 1 | 10.0 (2.00) | 10.0 (1.20) |\n| 512 | 10.0 | 10.0 (1.20) |")


def test_a_shape_that_was_left_out_is_a_dash() -> None:
    result = linear_result()
    del result["rows"][0]
    assert "| 1 | 10.0 (2.00) | - |" in draw("linear_shapes", result)


def test_quantise_functions_are_drawn_beside_a_copy_and_in_microseconds() -> None:
    cases = {"activation": "quantize_activation, bfloat16", "weight": "quantize_weight, bfloat16"}
    rows = [
        {"m": 1, "k": 7168, "us": {"activation": 2.345, "weight": 2.0}, "copy_us": {"activation": 2.0}},
        {"m": 2048, "k": 128, "us": {"activation": 20.0}, "copy_us": {"activation": 17.0, "weight": 9.0}},
    ]
    text = draw("quantize_kernels", {**H200, **GATES, "cases": cases, "rows": rows})
    assert "- `weight`: quantize_weight, bfloat16\n" in text
    assert "| M x K | `activation` | `weight` |\n| --- | --- | --- |\n| 2048 x 128 | 20.0, 85% | - |" in text
    assert "Few rows, microseconds:" in text and "| 1 x 7168 | 2.35 | 2.00 |" in text
    assert text.endswith(SAID)


def test_host_time_is_drawn_with_its_ratios() -> None:
    us = {"fp8_forward": 12.0, "linear": 10.0, "plan": 5.5, "nn_linear": 11.0}
    rows = [{"m": 1, "n": 7168, "k": 2048, "us": us}]
    text = draw("host", {**H200, **GATES, "python": "3.12.1", "cpu": "a CPU", "rows": rows})
    assert text.startswith("NVIDIA H200, 2026-01-02, torch 2.11, Python 3.12.1, a CPU. Medians.\n")
    assert "| `Fp8Linear.forward` over `F.linear` | `Fp8Linear` over `nn.Linear` |" in text
    assert "| 1 x 7168 x 2048 | 12.00 | - | 10.00 | - | 11.00 | 5.50 | - | - | 1.20 | - |" in text


def decoder_result() -> dict[str, Any]:
    """A prefill with everything, and a decode step for which compiling failed."""
    ms = {"bf16": 60.0, "fp8": 40.0, "bf16_compiled": 50.0, "fp8_compiled": 30.0}
    rows = [
        {
            "kind": "prefill",
            "batch": 1,
            "tokens": 2048,
            "context": 2048,
            "ms": ms,
            "tokens_per_s": {"fp8_compiled": 9.0},
        },
        {
            "kind": "decode",
            "batch": 16,
            "tokens": 1,
            "context": 128,
            "ms": {"bf16": 6.0, "fp8": 4.0},
            "tokens_per_s": {},
            "failed": {"fp8_compiled": "RuntimeError: no"},
        },
    ]
    return {
        **H200,
        **GATES,
        "transformers": "5.17",
        "decoder": {"layers": 36, "description": "36 layers"},
        "variants": dict.fromkeys(ms, "a description"),
        "weight_bytes": {"bf16": 16.4e9, "fp8": 9.4e9},
        "layer_bytes": {"bf16": 13.9e9, "fp8": 7e9},
        "rows": rows,
    }


def test_a_decoder_is_drawn_step_by_step_with_what_failed() -> None:
    text = draw("decoder", decoder_result())
    assert "36 layers. Its weights take 16.40 GB in bfloat16 and 9.40 GB after `convert`" in text
    assert "| prefill of 2048 tokens | 60.00 | 40.00 | 50.00 | 30.00 | 1.50 | 1.67 | 9 |" in text
    assert "| decode, batch 16, context 128 | 6.00 | 4.00 | - | - | 1.50 | - | - |" in text
    assert "- decode, batch 16, context 128, fp8, compiled, was not timed: RuntimeError: no\n" in text
    result = decoder_result()
    result["variants"] = {"bf16": "", "fp8": ""}
    assert "speed, as written | fp8, tokens/s |" in draw("decoder", result)


@pytest.mark.parametrize(
    ("name", "file", "result"),
    [
        ("linear", "bench-linear-h200.json", linear_result()),
        ("decoder", "decoder-h200.json", decoder_result()),
    ],
)
def test_these_sections_bring_their_pictures(tmp_path: Path, name: str, file: str, result: dict[str, Any]) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / file).write_text(json.dumps(result))
    page = f"<!-- results:{name}:begin --><!-- results:{name}:end -->"
    fresh = results.redrawn(page, "docs/linear.md", tmp_path)
    picture = f"plots/{file.removesuffix('.json')}.png"
    assert f"]({picture})" in fresh
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    results.draw_plots(tmp_path)
    assert (tmp_path / "docs" / picture).read_bytes().startswith(b"\x89PNG")
    assert results.check_plots([("docs/linear.md", fresh)], tmp_path) == []
