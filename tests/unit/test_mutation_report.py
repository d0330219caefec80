"""What runs of mutants on a GPU write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.gpu.test_mutations import PART, write_mutants
from tests.mutations.catalogue import GPU_MUTANTS, MUTANTS
from tests.mutations.report import read_report


def test_runs_of_some_mutants_add_up_to_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FP8GEMM_TEST_REPORT_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    names = [mutant.name for mutant in GPU_MUTANTS]
    half = len(names) // 2
    device = torch.device("cpu")
    write_mutants(device, {name: {"name": name, "result": "caught"} for name in names[:half]})
    assert [path.name for path in tmp_path.iterdir()] == [PART]
    write_mutants(device, {name: {"name": name, "result": "not caught"} for name in names[half:]})
    found = json.loads((tmp_path / "mutations-h200.json").read_text())["mutants"]
    assert [entry["name"] for entry in found] == [mutant.name for mutant in MUTANTS]
    assert sum(entry["result"] == "not caught" for entry in found) == len(names) - half
    (tmp_path / PART).write_text(json.dumps({"headers": "of others", "mutants": found}))
    assert read_report(PART) == {}
