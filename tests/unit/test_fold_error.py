"""scripts/fold_error.py: what it measures, and the table of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8gemm.products.folding import MOST_ERROR
from tests.scripts import load_script

script, results = load_script("fold_error"), load_script("results")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict:
    monkeypatch.setattr(script, "N", 128)
    monkeypatch.setattr(script, "K", 256)
    file = tmp_path / "result.json"
    assert script.main(["--seed", "3", "--json", str(file)]) == 0
    found: dict = json.loads(file.read_text())
    return found


def test_errors_grow_with_the_shift_and_are_those_of_the_blocks_that_lose(measured: dict) -> None:
    rows = measured["rows"]
    assert [row["shift"] for row in rows] == list(range(13)) and rows[0]["block"] == 0
    for name in ("block", "median", "product_of_small"):
        assert all(one[name] <= next_one[name] for one, next_one in zip(rows, rows[1:], strict=False)), name
    last = rows[-1]
    assert last["median"] < last["block"] < 0.1 and last["product"] < 1e-3 * last["product_of_small"]
    assert last["product_of_small"] == pytest.approx(last["median"], rel=0.5)
    assert all(0.02 < measured["anew"][name] < 0.04 for name in ("median", "product", "product_of_small"))
    assert measured["bfloat16"] == pytest.approx(1.65e-3, rel=0.05) and measured["most_error"] == MOST_ERROR


def test_the_table_says_what_is_folded_unasked(measured: dict) -> None:
    lines = [line for line in results.SECTIONS["fold_error"].draw(measured) if line.startswith("| ")]
    words = [line.rstrip(" |").rsplit("| ", 1)[1] for line in lines]
    asked = ["yes" if row["block"] <= MOST_ERROR else "no" for row in measured["rows"]]
    assert words == ["unasked", "---", *asked, "no"] and {"yes", "no"} == {*asked}
