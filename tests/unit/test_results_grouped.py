"""The sections on grouped products, drawn from made-up results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fp8gemm.lab.bench import grouped_cases as cases
from tests.scripts import load_script

results = load_script("results")

GATE = {"figure": 0.97, "limit": 0.9, "bound": "at least", "met": True, "mean": False, "worst": 0.97, "at": "a"}
H200: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "date": "2026-01-02",
    "torch": "2.11",
    "driver_cuda": "13.0",
    "method": "medians",
    "seed": 7,
    "skipped": {"deepgemm": "deep_gemm cannot be imported (no)"},
    "gates": {"speed": {**GATE, "count": 8}},
}


def row(part: str, groups: int, m: int, n: int, k: int, us: dict[str, float], **more: Any) -> dict[str, Any]:
    figures = {"flops": 2 * 10**10, "weight_bytes": 3 * 10**7, "configs": ["128x128-s6"], "touched": groups}
    return {"part": part, "groups": groups, "m": m, "n": n, "k": k, **figures, "us": us, **more}


def result() -> dict[str, Any]:
    """A case or two of each part; at one of the contiguous ones bfloat16 has no time."""
    big = {"offsets": 20.0, "indices": 25.0, "dense": 19.0}
    rows = [
        row(cases.CONTIGUOUS, 4, 8192, 6144, 7168, {**big, "bf16": 36.0}),
        row(cases.CONTIGUOUS, 8, 4096, 6144, 7168, big, failed={"bf16": "RuntimeError: no"}),
        row(cases.MASKED, 32, 20, 4096, 2048, {"masked": 12.0, "floor": 10.0}, max_m=256),
        row(cases.DECODE, 256, 3, 4096, 7168, {"offsets": 13.0, "masked": 12.5, "floor": 10.0}),
        row(cases.DECODE, 256, 1, 4096, 7168, {"offsets": 15.0, "masked": 14.0, "floor": 10.0}, touched=8),
        row(cases.K_GROUPED, 4, 4096, 7168, 8192, {"k_grouped": 20.0, "accumulate": 40.0, "dense": 19.0}),
        row(cases.LAYER, 256, 16, 7168, 2048, {"fp8_experts": 10.0, "bf16_experts": 17.0}, touched=0),
        row(cases.LAYER, 256, 64, 7168, 2048, {"fp8_experts": 10.0}, touched=0),
    ]
    return {**H200, "rows": rows}


def draw(name: str, result: dict[str, Any]) -> str:
    lines = results.SECTIONS[name].draw(result)
    assert not [line for line in lines if "\n" in line or line != line.rstrip()]
    return "\n".join(lines)


def test_each_layout_has_a_table() -> None:
    text = draw("grouped", result())
    assert text.startswith("NVIDIA H200, 2026-01-02, torch 2.11, driver for CUDA 13.0. Medians.\n")
    contiguous = "| {} | 6144 x 7168 | 128x128-s6 | 20.0 | 1000 | 0.95 | 25.0 | 0.76 | {} |\n"
    assert contiguous.format("4 x 8192", "1.80") + contiguous.format("8 x 4096", "-") in text
    assert "| 32 x 20 | 256 | 4096 x 2048 | 128x128-s6 | 12.0 | 1667 | 2500 | 1.20 |\n" in text
    assert "| 256 | 4096 x 7168 | 128x128-s6 | 10.0 | 13.0 | 2308 | 1.30 | 12.5 | 1.25 |\n| 8 of 256 |" in text
    assert "| 4 | 4096 x 7168 | 8192 | 128x128-s6 | 20.0 | 1000 | 0.95 | 40.0 | 0.47 |\n" in text
    assert "speed, DeepGEMM" not in text, "nobody has a time for it"
    assert "DeepGEMM was not measured: deep_gemm cannot be imported (no).\n" in text
    assert "- contiguous, 8 x 4096, 6144 x 7168: bf16 was not timed: RuntimeError: no\n" in text
    assert text.endswith("- speed: worst of 8 0.97, at least 0.9 is asked: met, at a.")


def test_deep_gemm_has_a_column_where_it_was_measured() -> None:
    measured = {**result(), "skipped": {}}
    measured["rows"][0]["us"]["deepgemm"] = 22.0
    text = draw("grouped", measured)
    assert "| speed, DeepGEMM |" in text and "| 1.10 | 1.80 |" in text and "was not measured" not in text


def test_a_run_over_one_part_has_one_table() -> None:
    part = {**result(), "gates": {}}
    part["rows"] = [row for row in part["rows"] if row["part"] == cases.MASKED]
    text = draw("grouped", part)
    assert text.count("\n| --- |") == 1 and "Masked" in text and "Decode" not in text


def test_layers_are_drawn_by_tokens() -> None:
    text = draw("experts", result())
    assert "| 256 | 7168, 2048 | 16 | 10.0 | 2000 | 3000 | 17.0 | 1.70 |" in text
    assert text.endswith("| 256 | 7168, 2048 | 64 | 10.0 | 2000 | 3000 | - | - |")


def test_the_plot_is_drawn_with_and_without_other_libraries(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    name = "docs/plots/bench-grouped-h200.png"
    plot = results.PLOTS[name]
    for part in (result(), {**result(), "rows": result()["rows"][2:3]}):
        path = tmp_path / name
        plot.draw(part, path)
        assert results.canvas.shows(path, part) and path.read_bytes().startswith(b"\x89PNG")
