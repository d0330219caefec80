"""What runs of mutants on a GPU write."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.gpu import test_mutations as on_gpu
from tests.gpu.test_mutations import PART, run_and_write, write_mutants
from tests.mutations.catalogue import GPU_MUTANTS, MUTANTS
from tests.mutations.mutant import Mutant
from tests.mutations.report import read_report
from tests.mutations.runner import Outcome


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


def test_each_mutant_is_written_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FP8GEMM_TEST_REPORT_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    mutants = [mutant for mutant in GPU_MUTANTS if not mutant.same_code][:8]

    def run(mutant: Mutant) -> Outcome:
        if mutant is mutants[5]:
            raise OSError("no process can be started")
        return Outcome(min(mutant.caught, key=str), "", "a test", "", 1.0)

    monkeypatch.setattr(on_gpu, "run_mutant", run)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(run_and_write, mutant, torch.device("cpu")) for mutant in mutants]
    assert [future.exception() is None for future in futures] == [mutant is not mutants[5] for mutant in mutants]
    ended = {entry["name"] for entry in read_report(PART)["mutants"]}
    assert {mutant.name for mutant in GPU_MUTANTS if mutant.name in ended} == {
        mutant.name for mutant in mutants if mutant is not mutants[5]
    }
