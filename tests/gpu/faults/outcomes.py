"""Where a table of faults puts down what became of them, on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from tests.gpu.faults.runner import PASSED, Outcome, run, table
from tests.gpu.faults.table import Fault
from tests.mutations.report import write_report


@contextmanager
def put_down(
    name: str, faults: Sequence[Fault], device: torch.device, say: Callable[[str], None]
) -> Iterator[list[Outcome]]:
    """The list for outcomes; at the end a table is drawn and, if all are there, ``<name>-h200.json`` written."""
    found: list[Outcome] = []
    yield found
    tests, seconds = sum(each.tests for each in found), sum(each.seconds for each in found)
    title = name.replace("-", " ")
    say(f"{title}: {len(found)} of {len(faults)}, {tests} tests passed in processes of their own, {seconds:.0f} s")
    say(table(found))
    if len(found) == len(faults):
        write_report(f"{name}-h200.json", device, faults=[each.row for each in found])


def run_alone(fault: Fault, outcomes: list[Outcome], *, seed: int) -> Outcome:
    """Run the tests of a fault in a process of their own and put down how they ended."""
    torch.cuda.empty_cache()  # what this process keeps, the other one cannot have
    outcome = run(fault, seed=seed)
    outcomes.append(outcome)
    return outcome


def require_passed(outcome: Outcome) -> None:
    """AssertionError if a test of the fault failed, or none ran."""
    fault = outcome.fault
    assert outcome.result.startswith(PASSED), f"fault {fault.number}, {fault.what}: {outcome.result}\n{outcome.detail}"
    assert outcome.tests > 0
