"""That every fault of the cache is in the table, with tests that there are, and that the command runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import cache_faults
from tests.cache_faults import FAULTS, FILES, LIMIT_S, needs_gpu
from tests.gpu.faults import runner
from tests.gpu.faults.table import ROOT, Fault, functions

WITH_GPU = {5, 22, 25}
"""Faults that take a GPU to show."""


def test_the_table_has_every_fault_and_every_fault_its_tests() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 26))
    for fault in FAULTS:
        assert fault.nodes and len(set(fault.nodes)) == len(fault.nodes)
        for node in fault.nodes:
            path, _, name = node.partition("::")
            assert f"\ndef {name}(" in (ROOT / path).read_text(), f"fault {fault.number}: there is no {node}"
    assert {fault.number for fault in FAULTS if needs_gpu(fault)} == WITH_GPU


def test_every_test_with_a_number_is_in_the_table() -> None:
    nodes = {fault.number: fault.nodes for fault in FAULTS}
    found = 0
    for path in FILES:
        for number in range(100):
            for name in functions(ROOT / path, number):
                found += 1
                assert f"{path}::{name}" in nodes[number]
    assert found > 30
    named = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/jit").glob("test_cache_faults_*.py")}
    assert named <= set(FILES)


def test_the_command_runs_faults_and_tells_how_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pretend(fault: Fault, *, seed: int) -> runner.Outcome:
        assert fault.limit_s == LIMIT_S
        return runner.Outcome(fault, 3, 0.5, "1 of 4 failed, exit code 1" if fault.number == 9 else "passed", "why")

    monkeypatch.setattr(cache_faults, "run", pretend)
    assert cache_faults.main(["6", "21"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["6", "21"]
    report = tmp_path / "cache-faults.json"
    assert cache_faults.main(["--json", str(report)]) == 1
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 25 and "fault 9," in output.err and "why" in output.err
    written = json.loads(report.read_text())
    assert written["machine"] == "no GPU" and len(written["date"]) == 10
    assert written["faults"][8] == {
        "number": 9,
        "what": FAULTS[8].what,
        "tests": 3,
        "seconds": 0.5,
        "result": "1 of 4 failed, exit code 1",
    }
    with pytest.raises(SystemExit):
        cache_faults.main(["7", "--json", str(report)])
    assert "all faults" in capsys.readouterr().err
