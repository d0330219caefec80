"""Kernels of a tuning run, compiled by other processes ahead of their turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.jit.build import build
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.tune import ahead
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import ranked_configs


def test_kernels_are_compiled_by_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(64, 128, 128)
    request = kernel_request(problem, ranked_configs(problem, named_chip("h200"))[0])
    found: list[str] = []
    monkeypatch.setattr(ahead, "build_many", lambda requests: found.extend(build(each).source for each in requests))
    with settings.scope(cache_dirs=(tmp_path,), trusted_dirs=(), jit="compile"), ahead.Ahead([request] * 2) as pool:
        pool.wait([request])
    assert found == ["disk"] and len(list(tmp_path.glob("*/kernel.cubin"))) == 1


@pytest.mark.parametrize("changes", [{"cache_dirs": ()}, {"jit": "error"}])
def test_no_process_compiles_what_this_one_could_not_use(changes: dict[str, Any]) -> None:
    request = kernel_request(Problem(64, 128, 128), TileConfig(128, 128, 4))
    with settings.scope(**changes), ahead.Ahead([request]) as pool:
        assert pool._pool is None
