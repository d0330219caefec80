"""The section on few rows: what it says before its result is there, and what it draws from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import load_script

results = load_script("results")


def small_m_result() -> dict[str, Any]:
    """Three M of two layers; at M = 4 of the second, nothing has a time but the floor."""
    rows = []
    for m in (1, 4, 48):
        for n, size in ((256, 1.0), (64, 4.0)):
            us = {"fp8gemm": 6.0 * size, "fp8gemm_pdl": 4.0 * size, "tensorwise": 8.0 * m * size}
            floors = {"floor": 5.0 * size, "floor_pdl": 3.2 * size}
            us = floors if (m, n) == (4, 64) else us | floors
            rows.append({"m": m, "n": n, "k": 128, "us": us, "config": f"tile{n}"})
    heading = {
        "gpu": "NVIDIA H200",
        "date": "2026-01-02",
        "torch": "2.11",
        "driver_cuda": "13.0",
        "method": "medians",
        "seed": 7,
    }
    return {**heading, "peers": dict.fromkeys(rows[0]["us"], "a description"), "rows": rows}


def test_few_rows_are_drawn_beside_the_floor() -> None:
    text = "\n".join(results.SECTIONS["small_m"].draw(small_m_result()))
    assert "geometric means over 2 N x K" in text and "F.scaled_mm" not in text
    by_m, each = (part.splitlines() for part in text.split("\n\nMicroseconds:\n\n"))
    assert by_m[-5] == (
        "| M | fp8gemm: time over floor | fp8gemm, PDL: time over floor, PDL | "
        "speed relative to `torch._scaled_mm`, per-tensor scales |"
    )
    assert by_m[-3:-1] == [
        "| 1 | 1.20 (1.20 to 1.20) | 1.25 (1.25 to 1.25) | 2.00 (2.00 to 2.00) |",
        "| 4 | 1.20 (1.20 to 1.20) | 1.25 (1.25 to 1.25) | 8.00 (8.00 to 8.00) |",
    ]
    assert each[3] == "| 64 x 128 | 4 | tile64 | - | - | - | 20.0 | 12.8 |"
    assert each[-1] == "| 256 x 128 | 48 | tile256 | 6.0 | 4.0 | 384.0 | 5.0 | 3.2 |"


SMALL_M = "<!-- results:small_m:begin --><!-- results:small_m:end -->"
SMALL_M_PLOT = "docs/plots/bench-small-m-h200.png"


def test_a_section_brings_its_picture(tmp_path: Path) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "bench-small-m-h200.json").write_text(json.dumps(small_m_result()))
    fresh = results.redrawn(SMALL_M, "docs/a.md", tmp_path)
    assert "seed 7.\n\n![Microseconds by M" in fresh and "](plots/bench-small-m-h200.png)" in fresh
    assert results.redrawn(fresh, "docs/a.md", tmp_path) == fresh
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    results.draw_plots(tmp_path)
    assert (tmp_path / SMALL_M_PLOT).read_bytes().startswith(b"\x89PNG")
    assert results.check_plots([("docs/a.md", fresh)], tmp_path) == []
