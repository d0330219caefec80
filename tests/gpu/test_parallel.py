"""Layers divided among two GPUs: overlapped calls give what calls give that wait for what is sent."""

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
RANKS, LIMIT_S = 2, 300


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong, by check, in words; started once for all of them."""
    if (count := torch.cuda.device_count()) < RANKS:
        pytest.skip(f"needs {RANKS} GPUs, there is {count}")
    directory = tmp_path_factory.mktemp("ranks")
    seed = os.environ.get("FP8GEMM_TEST_SEED") or "1"
    # NOTE: without multicast, which not every host of GPUs lets a process have.
    options = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.parallel_ranks", str(rank), str(RANKS), str(directory), seed],
            cwd=ROOT,
            env={**os.environ, **options},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
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
def test_it_holds_on_two_gpus(name: str, found: dict[str, str]) -> None:
    assert name in found, f"not begun:\n{found['printed']}"
    assert found[name] == "", found[name]
