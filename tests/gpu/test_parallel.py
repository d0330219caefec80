"""Layers divided among two and four GPUs: overlapped calls give what calls give that wait for what is sent."""

from __future__ import annotations

import os

import pytest
import torch

from tests.children import environment
from tests.distributed import world
from tests.gpu import parallel_ranks

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
    env = environment(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")
    processes = world.spawn(parallel_ranks.__name__, ranks, directory, seed, env=env)
    return world.outcomes(processes, directory, limit_s=LIMIT_S)


@pytest.mark.parametrize("name", [check.__name__ for check in parallel_ranks.CHECKS])
def test_it_holds_on_all_ranks(name: str, found: dict[str, str]) -> None:
    failed = "\n".join(wrong for wrong in found.values() if wrong)
    assert name in found, f"not begun:\n{failed}"
    assert found[name] == "", found[name]
