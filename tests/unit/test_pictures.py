"""Every picture of the pages is drawn from the result that is committed with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts import load_script

results = load_script("results")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", results.PLOTS)
def test_a_picture_is_drawn_from_its_result(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot, path = results.PLOTS[name], tmp_path / "picture.png"
    result = json.loads((ROOT / "docs" / "results" / plot.file).read_text())
    plot.draw(result, path)
    assert path.read_bytes().startswith(b"\x89PNG") and results.canvas.shows(path, result)
