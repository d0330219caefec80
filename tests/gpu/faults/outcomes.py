"""Where a table of faults puts down what became of them, on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from tests.gpu.faults.runner import PASSED, Outcome, run, table
from tests.gpu.faults.table import Fault
from tests.mutations.report import write_report

WORKERS = 4
"""Faults that are tried at a time: most of their time is that of processes that start, and of compilers."""


class Outcomes:
    """What becomes of faults, the tests of each in a process of their own.

    Args:
        chosen: those that are asked for.
        pool: what tries them.
    """

    def __init__(self, chosen: Sequence[Fault], pool: ThreadPoolExecutor) -> None:
        self._chosen = sorted(chosen, key=lambda fault: -fault.limit_s)  # the longest are begun first
        self._pool = pool
        self._runs: dict[int, Future[Outcome]] = {}

    def of(self, fault: Fault, *, seed: int) -> Outcome:
        """That of a fault. Who asks first has all of them tried."""
        if not self._runs:
            torch.cuda.empty_cache()  # what this process keeps, the others cannot have
            self._runs = {each.number: self._pool.submit(run, each, seed=seed) for each in self._chosen}
        return self._runs[fault.number].result()

    def ended(self) -> list[Outcome]:
        """Those that there are."""
        done = [self._runs[number] for number in sorted(self._runs)]
        return [each.result() for each in done if each.done() and not each.cancelled() and each.exception() is None]


@contextmanager
def put_down(
    name: str, faults: Sequence[Fault], session: pytest.Session, device: torch.device, say: Callable[[str], None]
) -> Iterator[Outcomes]:
    """What becomes of the faults that a session is about; at the end a table is drawn and, if all are there,
    ``<name>-h200.json`` written."""
    params = [callspec.params for item in session.items if (callspec := getattr(item, "callspec", None)) is not None]
    chosen = [fault for fault in faults if any(of_item.get("fault") is fault for of_item in params)]
    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes = Outcomes(chosen, pool)
        yield outcomes
        pool.shutdown(cancel_futures=True)
    found = outcomes.ended()
    tests, seconds = sum(each.tests for each in found), sum(each.seconds for each in found)
    title = name.replace("-", " ")
    say(f"{title}: {len(found)} of {len(faults)}, {tests} tests passed in processes of their own, {seconds:.0f} s")
    say(table(found))
    if len(found) == len(faults):
        write_report(f"{name}-h200.json", device, faults=[each.row for each in found])


def require_passed(outcome: Outcome) -> None:
    """AssertionError if a test of the fault failed, or none ran."""
    fault = outcome.fault
    assert outcome.result.startswith(PASSED), f"fault {fault.number}, {fault.what}: {outcome.result}\n{outcome.detail}"
    assert outcome.tests > 0
