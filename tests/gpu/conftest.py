"""What every test on a GPU shares. Without a Hopper GPU the whole directory is skipped, and the reason is printed.

With one, the summary at the end of a run says how many of these tests ran, and what they have to `say`. Each run draws
a fresh seed, which a failing test prints; FP8GEMM_TEST_SEED=<that number> repeats the run.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fp8gemm.driver.device import HOPPER, DeviceStatus, Diagnosis, diagnose, probe

_HERE = Path(__file__).parent
_SAID: list[str] = []
_SEED = int(os.environ.get("FP8GEMM_TEST_SEED") or secrets.randbits(32))


@cache
def _diagnosis() -> Diagnosis:
    return diagnose()


def _is_here(item: pytest.Item) -> bool:
    return _HERE in item.path.parents


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if _is_here(item)]
    if here and _diagnosis().status is not DeviceStatus.READY:
        # The whole message comes once, in the summary; pytest prints a reason for each place that skips.
        skip = pytest.mark.skip(reason=f"needs a Hopper GPU: {_diagnosis().status.value}")
        for item in here:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    root = terminalreporter.config.rootpath
    counts = {
        outcome: sum(_HERE in (root / report.fspath).parents for report in terminalreporter.stats.get(outcome, ()))
        for outcome in ("passed", "failed", "error", "skipped")
    }
    if counts["skipped"] and _diagnosis().status is not DeviceStatus.READY:
        terminalreporter.write_line(f"{counts['skipped']} GPU tests skipped: {_diagnosis().message}")
    elif any(counts.values()):
        found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        terminalreporter.write_line(f"GPU tests: {found}; seed {_SEED}; {_diagnosis().message}")
    for line in _SAID:
        terminalreporter.write_line(line)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed and _is_here(item):
        report.sections.append(("Seed", f"FP8GEMM_TEST_SEED={_SEED} repeats this test's random data."))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The first Hopper GPU, made torch's current device."""
    index = next(index for index, gpu in enumerate(probe().gpus) if gpu.capability == HOPPER)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


@pytest.fixture(scope="session")
def say() -> Callable[[str], None]:
    """Puts a line, or several, into the summary at the end of the run."""
    return _SAID.append


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    """A generator on `device`, in the same state at the beginning of every test of a run."""
    return torch.Generator(device).manual_seed(_SEED)


@pytest.fixture
def seed(generator: torch.Generator) -> int:
    """For tests that make their operands with `tests.cases`."""
    return generator.initial_seed()
