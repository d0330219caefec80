"""Spellings of an earlier release work, and say in one line what to write; the present ones say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8gemm.cli import main as cli

EXPLAIN = ["explain", "64", "256", "512"]
LIST = ["warmup", "--nk", "256x512", "--max-m", "64", "--chip", "h200", "--list"]
OLD = {
    "--output": ([*EXPLAIN, "--output", "float16"], [*EXPLAIN, "--out-dtype", "float16"]),
    "--scaling rows": ([*EXPLAIN, "--scaling", "rows"], [*EXPLAIN, "--scaling", "1d1d"]),
    "--scaling blocks": ([*EXPLAIN, "--scaling", "blocks"], EXPLAIN),
    "--scaling rows of a warmup": ([*LIST, "--scaling", "rows"], [*LIST, "--scaling", "1d1d"]),
    "--json before a size": (["explain", "--json", *EXPLAIN[1:]], [*EXPLAIN, "--json"]),
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_word_does_what_the_new_one_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for words in OLD[name]:
        assert cli.main(words) == 0
        told.append(capsys.readouterr())
    assert told[0].out == told[1].out and not told[1].err
    (line,) = told[0].err.splitlines()
    assert line.startswith(f"fp8gemm: warning: {' '.join(name.split()[:2] if 'scaling' in name else name.split()[:1])}")
    assert ": write" in line or "; write" in line


def test_a_directory_behind_json_is_still_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    assert cli.main(["cache", "ls", "--json", str(tmp_path / "cache")]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["directories"][0]["path"] == str(tmp_path / "cache") and "write --json last" in told.err
    assert cli.main(["cache", "ls", "--json", str(tmp_path / "out.json"), str(tmp_path / "cache")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(told.out) and not capsys.readouterr().err


def test_chips_are_repeated_or_have_commas_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    told = set()
    for words in (["h200,h20"], ["h200", "--chip", "h20"], ["h20,h200", "--chip", "h20"]):
        assert cli.main(["warmup", "--nk", "256x512", "--chip", *words, "--list"]) == 0
        told.add(capsys.readouterr().out)
    assert len(told) == 1
    assert cli.main([*EXPLAIN, "--chip", "h200:60"]) == 0 and "on h200" in capsys.readouterr().out
