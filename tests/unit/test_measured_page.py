"""docs/measured.md names every picture and every result file, and what is behind each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
results = load_script("results")
PAGE = (ROOT / "docs" / "measured.md").read_text()


def test_every_picture_and_every_result_is_named() -> None:
    pictures = {path.name for path in (ROOT / "docs" / "plots").glob("*.png")}
    assert pictures and pictures == set(re.findall(r"!\[[^\]]+\]\(plots/([^)]+)\)", PAGE))
    files = {path.name for path in (ROOT / "docs" / "results").glob("*.json")}
    assert files == set(re.findall(r"^\|.* \[`([^`]+)`\]\(results/\1\) \|$", PAGE, re.MULTILINE))
    assert pictures == {Path(name).name for name in results.PLOTS}, "and scripts/results.py draws each"


def test_each_says_of_which_gpu_day_and_regime_it_is(tmp_path: Path) -> None:
    (folder := tmp_path / "docs" / "results").mkdir(parents=True)
    contents = {
        "bench-h200.json": {"gpu": "NVIDIA H200", "date": "2026-01-02", "method": "turn: peers in turn", "rows": []},
        "random-burst-h200.json": {"gpu": "NVIDIA H200", "date": "2026-01-03", "rows": [{"regime": "burst"}]},
        "timeline-h200.json": {"otherData": {"gpu": "NVIDIA H200", "date": "2026-01-04"}},
        "warmup.json": {"cpu": "AMD EPYC", "date": "2026-01-05"},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    markers = "<!-- results:measured:begin -->\n<!-- results:measured:end -->"
    text = results.redrawn(markers, "docs/measured.md", tmp_path)
    assert (
        "NVIDIA H200, 2026-01-02, turn. [Table](tuning.md#speed-by-rows), [figures](results/bench-h200.json)." in text
    )
    assert "| NVIDIA H200 | 2026-01-03 | burst | [`random-burst-h200.json`]" in text
    assert "| NVIDIA H200 | 2026-01-04 | - | [`timeline-h200.json`]" in text
    assert "| - | 2026-01-05 | - | [`warmup.json`]" in text
    assert text.count("![") == 2, "pictures of results that are there"


def test_a_result_of_which_nobody_says_what_it_shows_is_an_error(tmp_path: Path) -> None:
    (folder := tmp_path / "docs" / "results").mkdir(parents=True)
    (folder / "new.json").write_text(json.dumps({"date": "2026-01-02"}))
    markers = "<!-- results:measured:begin -->\n<!-- results:measured:end -->"
    with pytest.raises(results.PageError, match=r"docs/measured\.md: docs/results/new\.json: say in .*measured\.py"):
        results.redrawn(markers, "docs/measured.md", tmp_path)
