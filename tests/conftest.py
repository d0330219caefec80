"""Options that put faults or sleeps into the device headers, and what a test does when the GPU does not come back."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

_MUTANT, _CHAOS = "FP8GEMM_TEST_MUTANT", "FP8GEMM_TEST_CHAOS"
_STUCK: list[object] = []
"""Objects whose destructors would wait for a GPU that hangs. Where there is one, the process must not end as usual."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fp8gemm", "faulty kernels")
    group.addoption(
        "--mutant",
        metavar="NAME",
        default=os.environ.get(_MUTANT),
        help="compile kernels with this fault of tests/mutations/catalogue.py; the headers themselves stay as they are",
    )
    group.addoption(
        "--chaos",
        action="store_true",
        default=bool(os.environ.get(_CHAOS)),
        help="compile kernels with random short sleeps before issue, arrive and wait",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported."""
    # The products here are small, and threads that wait for each other's pieces of them take most of the time.
    torch.set_num_threads(1)
    name, chaos = config.getoption("mutant"), config.getoption("chaos")
    if not name and not chaos:
        return
    from tests.mutations import catalogue, tree

    try:
        mutant = catalogue.find(name) if name else None
    except KeyError:
        known = ", ".join(mutant.name for mutant in catalogue.MUTANTS)
        raise pytest.UsageError(f"--mutant: expected one of {known}; got {name}") from None
    place = Path(tempfile.mkdtemp(prefix="fp8gemm-headers-"))
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    tree.use(tree.make(place, mutant, chaos=chaos))
    # Tests that start pytest again mean the same kernels; and what faulty ones do is no result to keep.
    os.environ.update({_MUTANT: name or "", _CHAOS: "1" if chaos else ""})
    os.environ.pop("FP8GEMM_TEST_REPORT_DIR", None)


def pytest_report_header(config: pytest.Config) -> str | None:
    name, chaos = config.getoption("mutant"), config.getoption("chaos")
    return f"kernels: {name or 'without fault'}{', with sleeps' if chaos else ''}" if name or chaos else None


@pytest.fixture
def no_progress(request: pytest.FixtureRequest) -> Callable[..., NoReturn]:
    """``no_progress(message, *owners)``: fail the test and end the session, because the GPU hangs.

    ``owners`` are graphs, tensors and the like, whose destructors would wait for the GPU forever.
    """
    from tests.mutations.runner import HANG_MARK

    def fail(message: str, *owners: object) -> NoReturn:
        _STUCK.extend((message, *owners))
        request.session.shouldfail = HANG_MARK
        raise AssertionError(f"{HANG_MARK}: {message}")

    return fail


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """All reports have been written."""
    if _STUCK:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(pytest.ExitCode.TESTS_FAILED)
