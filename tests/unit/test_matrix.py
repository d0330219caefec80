"""scripts/matrix.py: what a row tells, what becomes of one that fails or cannot be had, and how the page shows it."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.children import ROOT
from tests.scripts import load_script

matrix, results = load_script("matrix"), load_script("results")
STEPS = matrix.STEPS

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="fine"/>
<testcase classname="tests.unit.test_a" name="wrong"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="broken"><error message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="left"><skipped message="no GPU"/></testcase>
<testcase classname="tests.unit.test_a" name="out"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""
TOLD: dict[str, dict[str, Any]] = {
    "install": {"megabytes": 5},
    "import": {"torch": "2.6.0+cu124", "milliseconds": 7.4},
    "info": {"bindings": "13.4", "nvrtc": "12.4"},
    "demo": {"passed": 2, "failed": 0, "kernels_compiled": 1},
    "warmup": {"nvrtc": "13.0", "kernels": 22},
    "tests": {
        "words": ["tests/unit/test_a.py", "--deselect=b"],
        "passed": 5,
        "failed": 0,
        "skipped": 1,
        "failures": [],
    },
    "other_warmup": {"nvrtc": "12.9", "kernels": 23},
}
TOLD["tests"] |= {"failures": [], "reasons": {"no GPU": 1}}


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the script where each step tells what is above, and no environment is made; its exit code and its file."""
    for name in ("fp8gemm.whl", "fp8gemm.tar.gz"):
        (tmp_path / name).touch()
    monkeypatch.setattr(matrix.Environment, "make", lambda self, interpreter: None)
    steps = {name: lambda _, told=told: dict(told) for name, told in TOLD.items() if name in STEPS}
    monkeypatch.setattr(matrix, "STEPS", steps)
    monkeypatch.setattr(matrix, "tests", lambda environment, words: dict(TOLD["tests"]))
    monkeypatch.setattr(matrix, "LAST", {"other_warmup": lambda _: dict(TOLD["other_warmup"])})
    monkeypatch.setattr(
        matrix, "find_python", lambda version: None if version == "3.14" else ("python", f"{version}.1")
    )

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = matrix.main([*words, "--dist", str(tmp_path), "--json", str(tmp_path / "matrix.json")])
        return code, json.loads((tmp_path / "matrix.json").read_text())

    return run


def test_rows_are_kept_from_one_run_to_the_next(ask: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    assert ask("--torch", "newest", "2.11.0", "--python", "3.10")[0] == 0
    assert ask("--torch", "2.8.0", "--python", "3.12", "3.10", "--tests")[0] == 0
    code, document = ask("--torch", "2.11.0", "--python", "3.10", "--uv")
    rows = [(row["torch"], row["python"], row["installer"], "tests" in row) for row in document["rows"]]
    assert code == 0 and rows == [
        ("2.8.0", "3.10", "pip", False),
        ("2.8.0", "3.12", "pip", False),
        ("2.11.0", "3.10", "uv", True),
        ("newest", "3.10", "pip", True),
    ]


def test_a_row_says_what_failed_and_what_could_not_be_had(
    ask: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = ask("--torch", "2.6.0", "--python", "3.14", "3.10")
    assert code == 1 and [row["problem"] for row in document["rows"]] == [None, "no Python 3.14 here"]
    assert "Python 3.14, torch 2.6.0: no Python 3.14 here" in capsys.readouterr().out

    def fail(environment: Any) -> dict[str, Any]:
        raise matrix.Failed(f"no such file: {environment.home}/kernels")

    monkeypatch.setattr(matrix, "STEPS", {**matrix.STEPS, "demo": fail})
    code, document = ask("--torch", "2.6.0", "--python", "3.10")
    row = document["rows"][0]
    assert code == 1 and row["problem"] == "demo: no such file: .../kernels" and "warmup" not in row
    monkeypatch.setitem(TOLD, "tests", TOLD["tests"] | {"failed": 1, "failures": ["tests.unit.test_a::wrong"]})
    monkeypatch.setitem(matrix.STEPS, "demo", lambda _: dict(TOLD["demo"]))
    assert ask("--torch", "2.6.0", "--python", "3.10")[0] == 1
    assert capsys.readouterr().out.endswith("1 failed, 1 skipped\n  tests.unit.test_a::wrong\n")


def test_the_page_shows_every_row(ask: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    ask("--torch", "2.6.0", "--python", "3.10")
    ask("--torch", "newest", "--python", "3.12", "3.14", "--tests")
    _, document = ask("--torch", "2.6.0", "--python", "3.14")
    text = "\n".join(results.SECTIONS["install_matrix"].draw(document))
    assert "skipped are `a`." in text
    assert "| 2.6.0+cu124 | 3.10.1 | 7 | 12.4 | 2 of 2 | 23 by 12.9, 22 by 13.0 | 5 | 0 | 1 | 0 |" in text
    assert "| 2.6.0+cu124 | 3.12.1 | 7 | 12.4 | 2 of 2 | 23 by 12.9, 22 by 13.0 | - | - | - | 0 |" in text
    assert "- Python 3.14 with torch newest could not be tested: no Python 3.14 here." in text
    assert text.endswith("- Skipped: no GPU.") and "Nothing failed" not in text


def test_a_report_is_counted(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    told = load_script("matrix_steps").counted(tmp_path / "report.xml")
    assert (told["passed"], told["failed"], told["skipped"]) == (1, 2, 2)
    assert told["failures"] == ["tests.unit.test_a::broken", "tests.unit.test_a::wrong"]
    assert told["reasons"] == {"no GPU": 2}


def test_a_python_is_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, line in (("python3.98", "echo /a b/python 3.98.1"), ("python3.99", "exit 127")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    assert matrix.find_python("3.98") == ("/a b/python", "3.98.1")
    assert matrix.find_python("3.99") is None and matrix.find_python("3.97") is None
    assert matrix.find_python(matrix.HERE) == (sys.executable, platform.python_version())


def test_what_is_run_is_there() -> None:
    named = [word.split("::")[0].removeprefix("--deselect=") for word in matrix.TESTS]
    assert len(named) > 20 and all((ROOT / name).is_file() for name in named)
    assert matrix.DEMO[0] == "demo" and matrix.WARMUP[0] == "warmup"


def test_an_environment_knows_nothing_of_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = load_script("matrix_steps")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FP8GEMM_JIT", "error")
    environment = steps.Environment(tmp_path, tmp_path / "a.whl", tmp_path / "a.tar.gz", "torch", uv=True)
    environment.make(sys.executable)
    seen = environment.evaluate(
        "import importlib.util, json, os, sys\n"
        "names = [name for name in os.environ if name.startswith(('FP8GEMM_', 'PYTHONPATH'))]\n"
        "print(json.dumps({'names': names, 'prefix': sys.prefix, 'at': os.getcwd(),\n"
        "    'found': importlib.util.find_spec('fp8gemm') is not None}))"
    )
    assert seen["names"] == ["FP8GEMM_CACHE_DIR"] and not seen["found"]
    assert (seen["prefix"], seen["at"]) == (str(tmp_path / "venv"), str(tmp_path / "elsewhere"))
    with pytest.raises(steps.Failed, match="^ModuleNotFoundError: No module named 'fp8gemm'$"):
        environment.evaluate("import fp8gemm")


def test_the_other_compiler_is_installed_or_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = load_script("matrix_steps")
    environment = steps.Environment(tmp_path, tmp_path / "a.whl", tmp_path / "a.tar.gz", "torch", uv=True)
    versions, asked = iter(["13.2", "12.9", "12.4", "12.4"]), []
    monkeypatch.setattr(steps, "compiler_of", lambda *_: next(versions))
    monkeypatch.setattr(steps.Environment, "pip", lambda _, *words: asked.append(words))
    monkeypatch.setattr(steps.Environment, "fp8gemm", lambda *_: {"kernels": 22, "compiled": 22})
    assert steps.other_warmup(environment) == {"nvrtc": "12.9", "kernels": 22}
    with pytest.raises(steps.Failed, match="expected the NVRTC of another CUDA than 12, got 12.4"):
        steps.other_warmup(environment)
    assert asked == [("uninstall", "nvidia-cuda-nvrtc"), ("install", "nvidia-cuda-nvrtc==13.*")]
    monkeypatch.setattr(steps.Environment, "fp8gemm", lambda *_: {"kernels": 22, "compiled": 0})
    with pytest.raises(steps.Failed, match="expected every kernel compiled"):
        steps.warmup(environment)
