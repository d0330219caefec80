"""Layers divided among two and four GPUs: overlapped calls give what calls give that wait for what is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import parallel_ranks

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


@pytest.fixture(scope="module", params=[2, 4])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong, by check, in words; ranks are started once for all of them."""
    ranks: int = request.param
    if (count := torch.cuda.device_count()) < ranks:
        pytest.skip(f"needs {ranks} GPUs, there is {count}")
    directory = tmp_path_factory.mktemp("ranks")
    seed = os.environ.get("FP8GEMM_TEST_SEED") or "1"
    # NOTE: without multicast, which not every host of GPUs lets a process have.
    options = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.parallel_ranks", str(rank), str(ranks), str(directory), seed],
            cwd=ROOT,
            env={**os.environ, **options},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outcomes: dict[str, str] = {}
    for rank, process in enumerate(processes):
        try:
            said = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = f"killed after {LIMIT_S} s\n{process.communicate()[0]}"
        path = directory / f"{rank}.json"
        of_rank: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
        for name, wrong in of_rank.items():
            outcomes[name] = outcomes.get(name, "") + (f"rank {rank}: {wrong}\n" if wrong else "")
        outcomes["printed"] = outcomes.get("printed", "") + f"rank {rank} ({process.returncode}): {said[-3000:]}\n"
    return outcomes


@pytest.mark.parametrize("name", [check.__name__ for check in parallel_ranks.CHECKS])
def test_it_holds_on_all_ranks(name: str, found: dict[str, str]) -> None:
    assert name in found, f"not begun:\n{found['printed']}"
    assert found[name] == "", found[name]
