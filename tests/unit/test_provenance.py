"""What result files say of the code that they are of, and the list of those that may be old."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8gemm.jit.headers import include_dir
from fp8gemm.lab import provenance
from tests.scripts import load_script

results = load_script("results")
from result_tables import ages  # noqa: E402  # on the path since scripts/results.py was loaded


@pytest.fixture
def include(tmp_path: Path) -> Path:
    (folder := tmp_path / "include" / "fp8gemm" / "ptx").mkdir(parents=True)
    (folder / "a.cuh").write_text("a")
    (folder / "b.cuh").write_text("b")
    return tmp_path / "include"


@pytest.fixture
def checkout(include: Path) -> Iterator[Path]:
    """A repository of one commit."""
    root = include.parent.resolve()
    (root / "fp8gemm").mkdir()
    (root / "fp8gemm" / "x.py").write_text("1\n")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m one"):
        subprocess.run(["git", "-C", str(root), *words.split()], check=True, capture_output=True)
    provenance.commit_of.cache_clear()
    yield root
    provenance.commit_of.cache_clear()


def test_the_hash_is_that_of_names_and_bytes_wherever_they_lie(include: Path, tmp_path: Path) -> None:
    before = provenance.headers_hash(include)
    assert re.fullmatch("[0-9a-f]{16}", before)
    moved = include.rename(tmp_path / "elsewhere")
    (moved / "notes.txt").write_text("no header")
    assert provenance.headers_hash(moved) == before
    ptx = moved / "fp8gemm" / "ptx"
    (ptx / "b.cuh").write_text("c")
    assert (changed := provenance.headers_hash(moved)) != before
    (ptx / "b.cuh").rename(ptx / "c.cuh")
    assert provenance.headers_hash(moved) not in (before, changed)


def test_the_commit_tells_of_changes_to_code_and_not_to_results(checkout: Path) -> None:
    def told() -> str:
        provenance.commit_of.cache_clear()
        return provenance.commit_of(checkout)

    clean = told()
    assert re.fullmatch("[0-9a-f]{4,40}", clean)
    (checkout / "docs").mkdir()
    (checkout / "docs" / "result.json").write_text("{}")
    assert told() == clean
    (checkout / "fp8gemm" / "new.py").write_text("2\n")
    assert told() == clean + provenance.CHANGED
    assert provenance.commit_of(checkout / "fp8gemm") == provenance.UNKNOWN, "a repository of somebody else's"


def test_without_git_the_commit_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.commit_of(checkout) == provenance.UNKNOWN


def test_what_a_person_says_comes_first(include: Path) -> None:
    found = provenance.provenance("abc", include=include)
    assert found == {"commit": "abc", "headers": provenance.headers_hash(include)}
    here = provenance.provenance()
    assert here["commit"] == provenance.commit_of(Path(provenance.__file__).parents[2])
    assert here["headers"] == provenance.headers_hash(include_dir())


def test_the_list_says_which_results_are_of_these_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = provenance.headers_hash(include_dir())
    files = {
        "current.json": {"date": "2026-01-02", "commit": "abc", "headers": now},
        "older.json": {"date": "2026-01-01", "commit": "abb", "headers": "0" * 16},
        "silent.json": {"rows": []},
        "trace.json": {"traceEvents": [], "otherData": {"date": "2026-01-03", "headers": now}},
        "unsure.json": {"headers": provenance.UNKNOWN},
    }
    (folder := tmp_path / results.RESULTS).mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["results.py", "--ages"])
    assert results.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        f"current.json  2026-01-02  {ages.CURRENT}, commit abc",
        f"older.json    2026-01-01  {ages.OTHER}, commit abb",
        f"silent.json   unknown     {ages.NONE}, commit unknown",
        f"trace.json    2026-01-03  {ages.CURRENT}, commit unknown",
        f"unsure.json   unknown     {ages.NONE}, commit unknown",
        "3 of 5 may be older than the code",
    ]
