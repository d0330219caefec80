"""What holds for every run of tests: which it collects, how processes share them, what of the kernels it covers.

And options that put faults or sleeps into the device headers, and what a test does when the GPU does not come back.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from tests import remembered, sharing, thirds

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
    # For processes that share the tests too, and for runs that tests start.
    chosen = os.environ.setdefault(thirds.VARIABLE, thirds.of_commit())
    if chosen not in thirds.CHOICES:
        raise pytest.UsageError(f"{thirds.VARIABLE}: expected one of {', '.join(thirds.CHOICES)}; got {chosen}")
    if not name and not chaos:
        return
    os.environ[thirds.VARIABLE] = thirds.ALL  # a fault may show in any
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


def pytest_report_header(config: pytest.Config) -> list[str]:
    name, chaos = config.getoption("mutant"), config.getoption("chaos")
    faults = [f"kernels: {name or 'without fault'}{', with sleeps' if chaos else ''}"] if name or chaos else []
    covered = os.environ[thirds.VARIABLE]
    what = "all kernels" if covered == thirds.ALL else f"third {covered} of the kernels"
    return [*faults, f"{thirds.VARIABLE}={covered}: tests that cover tiles, outputs and stores take {what}"]


def _is_one_of_several(config: pytest.Config) -> bool:
    """Whether this process runs a part of the tests for another, by pytest-xdist."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return sharing.processes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return sharing.scheduler(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if sharing.leaves_out(collection_path, config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_one_of_several(config):
        sharing.first_the_longest(items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if sharing.HERE in sharing.named(config) and sharing.leaves_out(sharing.GPU, config):
        terminalreporter.write_line(f"GPU tests are left out: {sharing.why_no_gpu()}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    kept = remembered.place()
    if kept is not None and not _is_one_of_several(session.config):
        remembered.evict(kept)


@pytest.fixture(scope="module")
def known_kernels() -> Iterator[None]:
    """Kernels of this module's tests, which only look at them, are taken from runs before, where those had the same."""
    from fp8gemm.jit import build

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "compile_program", remembered.compile_program)
        yield


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
