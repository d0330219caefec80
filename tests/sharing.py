"""How a run of tests is divided: which are collected, which share a process, and which come first."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
GPU = HERE / "gpu"
MAX_PROCESSES = 8
"""Each imports torch; and the longest file, which is one process's, takes an eighth of the time."""

LONGEST = (
    "jit/test_machine_order.py",
    "jit/test_sass.py",
    "unit/test_mutations.py",
    "jit/test_kernels.py",
    "jit/test_swap_ab.py",
    "jit/test_traced.py",
    "unit/test_model_accuracy.py",
)
"""Begun first, so that no process is left alone with one of them at the end."""
APART, BY_PARAMETER = ("jit/test_kernels.py", "gpu/test_in_engines.py"), ("jit/test_machine_order.py",)
"""Long files whose tests need not keep together: any of them, or those of different parameters."""


def processes() -> int:
    """As many as there are processors here for them."""
    return min(len(os.sched_getaffinity(0)), MAX_PROCESSES)


@cache
def why_no_gpu() -> str:
    """Why no test here can run on a GPU; empty if it can. It asks the driver."""
    from fp8gemm.driver.device import DeviceStatus, diagnose

    diagnosis = diagnose()
    return "" if diagnosis.status is DeviceStatus.READY else diagnosis.message


def leaves_out(path: Path, config: pytest.Config) -> bool:
    """Whether a directory is passed over: that of the GPU's tests, where there is none and nobody has named it."""
    return path == GPU and not any(each.is_relative_to(GPU) for each in named(config)) and bool(why_no_gpu())


def named(config: pytest.Config) -> list[Path]:
    """The files and directories that the command line asks for."""
    return [Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args]


def first_the_longest(items: list[pytest.Item]) -> None:
    """Order them so, and leave all others, and those of one file, as they are."""
    order = {HERE / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def together(nodeid: str) -> str:
    """What tests that one process runs have in common: their file, so that its fixtures make once what they make.

    Where these have parameters, the parameter; and each test is by itself where the file has no such fixtures.
    """
    path, _, test = nodeid.partition("::")
    if path.endswith(APART):
        return nodeid
    return path + test.partition("[")[2] if path.endswith(BY_PARAMETER) else path


def scheduler(config: pytest.Config, log: Any) -> Any:
    """What hands out tests to processes; it takes them in their order, and asks `together`."""
    # NOTE: not by the mark xdist_group: with pytest 9.2 pytest-xdist 3.8 does not see it, and says nothing.
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
