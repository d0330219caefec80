"""Every fault that needs a GPU to show is caught by a named test, as promised; and those tests pass without it.

Each mutant's tests run in a process of their own, several at a time, because most of their time is a process's start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import pytest
import torch

from tests.gpu.test_stress import DEFAULT_LAUNCHES
from tests.mutations.catalogue import CONTROLS, GPU_MUTANTS, MUTANTS
from tests.mutations.mutant import Caught, Mutant
from tests.mutations.report import read_report, write_report
from tests.mutations.runner import Outcome, run_mutant

WORKERS = max(len(os.sched_getaffinity(0)) - 2, 1)
"""Most of the time compiles; what the GPU does of it, its processes share."""
PART = "mutations-part.json"
"""What runs of some mutants leave for the next, which may complete it."""
_FAMILY = "test_launches_behind_many_stores_are_right"

Runs = dict[str, "Future[Outcome]"]
_WRITING = Lock()


def chosen(session: pytest.Session, mutants: tuple[Mutant, ...]) -> list[Mutant]:
    """Those that some test of this session is about."""
    names = {item.callspec.params["mutant"].name for item in session.items if "mutant" in _parameters(item)}
    return [mutant for mutant in mutants if mutant.name in names]


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec and item.path.name == os.path.basename(__file__) else {}


def by_time(mutant: Mutant) -> tuple[bool, bool, tuple[str, ...]]:
    """Those first whose tests may launch very often, then those that they may await in vain."""
    return not mutant.chaos, Caught.HANG not in mutant.caught, mutant.tests


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, device: torch.device, say: Callable[[str], None]) -> Iterator[Runs]:
    """How the tests of each chosen mutant end; the long ones are begun first."""
    mutants = sorted(chosen(request.session, GPU_MUTANTS), key=by_time)
    with ThreadPoolExecutor(WORKERS) as pool:
        found = {mutant.name: pool.submit(run_mutant, mutant) for mutant in chosen(request.session, CONTROLS)}
        found |= {mutant.name: pool.submit(run_and_write, mutant, device) for mutant in mutants}
        yield found
        for name, future in found.items():
            outcome = future.result()
            said = outcome.how.value if outcome.how else outcome.problem or "no test fails"
            say(f"{name:<40} {said:<20} {outcome.seconds:>4.0f} s  {outcome.test}")


def run_and_write(mutant: Mutant, device: torch.device) -> Outcome:
    """Run a mutant's tests. What came of it is written at once, so that a run that is cut off leaves what has ended."""
    outcome = run_mutant(mutant)
    with _WRITING:
        write_mutants(device, {mutant.name: record(mutant, outcome)})
    return outcome


def write_mutants(device: torch.device, ended: dict[str, Any]) -> None:
    """Results of all mutants; of some, for a later run with the same headers to complete."""
    ended = {entry["name"]: entry for entry in read_report(PART).get("mutants", [])} | ended
    ended |= {mutant.name: record(mutant) for mutant in MUTANTS if not mutant.gpu}
    entries = [ended[mutant.name] for mutant in MUTANTS if mutant.name in ended]
    write_report("mutations-h200.json" if len(entries) == len(MUTANTS) else PART, device, mutants=entries)


def record(mutant: Mutant, outcome: Outcome | None = None) -> dict[str, Any]:
    """A mutant and what became of it, for the results. Those that need no GPU are held to their promise elsewhere."""
    entry: dict[str, Any] = {"name": mutant.name, "what": mutant.what, "files": mutant.files}
    if mutant.same_code:
        return {**entry, "caught_by": "", "how": "", "result": "not observable", "reason": mutant.same_code}
    if outcome is None:
        how = " or ".join(sorted(way.value for way in mutant.caught))
        return {**entry, "caught_by": mutant.tests[0], "how": how, "result": "caught", "reason": "needs no GPU"}
    if outcome.how in mutant.caught:
        return {**entry, "caught_by": outcome.test, "how": outcome.how.value, "result": "caught", "reason": ""}
    if outcome.passed and mutant.may_survive:
        return {**entry, "caught_by": "", "how": "", "result": "not observable", "reason": survival(mutant)}
    return {**entry, "caught_by": "", "how": "", "result": "not caught", "reason": str(outcome)}


def survival(mutant: Mutant) -> str:
    """What has been tried in vain, and why that may be."""
    launches = int(os.environ.get("FP8GEMM_TEST_LAUNCHES") or DEFAULT_LAUNCHES)
    stressed = any("test_stress.py" in test or _FAMILY in test for test in mutant.tests)
    tried = f"{launches} launches" if stressed else "its tests"
    return f"not observable after {tried}{' in the chaos build' if mutant.chaos else ''}: {mutant.may_survive}"


@pytest.mark.parametrize("mutant", CONTROLS, ids=lambda mutant: mutant.name)
def test_the_named_tests_pass_without_a_fault(mutant: Mutant, runs: Runs) -> None:
    outcome = runs[mutant.name].result()
    assert outcome.passed, str(outcome)


@pytest.mark.parametrize("mutant", GPU_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, runs: Runs) -> None:
    outcome = runs[mutant.name].result()
    if outcome.passed and mutant.may_survive:
        print(survival(mutant))
        return
    assert outcome.how in mutant.caught, f"{mutant.what}: expected {[how.value for how in mutant.caught]}; {outcome}"
