"""The faults that must not hurt, each in a process of its own under a time limit: the table of `tests.gpu.faults`.

    pytest tests/gpu/test_faults.py -k 07               # one of them, as here
    pytest tests/gpu/faults/values.py -k fault_07       # the same in this process

With FP8GEMM_TEST_REPORT_DIR set, a run of all of them writes faults-h200.json there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.gpu.faults.runner import PASSED, Outcome, run, table
from tests.gpu.faults.table import FAULTS, Fault
from tests.mutations.report import write_report


@pytest.fixture(scope="module")
def outcomes(device: torch.device, say: Callable[[str], None]) -> Iterator[list[Outcome]]:
    """Where each fault's outcome is put down; the table is drawn at the end."""
    found: list[Outcome] = []
    yield found
    tests, seconds = sum(each.tests for each in found), sum(each.seconds for each in found)
    say(f"faults: {len(found)} of {len(FAULTS)}, {tests} tests passed in processes of their own, {seconds:.0f} s")
    say(table(found))
    if len(found) == len(FAULTS):
        write_report("faults-h200.json", device, faults=[each.row for each in found])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number:02d}")
def test_fault(fault: Fault, outcomes: list[Outcome], seed: int) -> None:
    torch.cuda.empty_cache()  # what this process keeps, the other one cannot have
    outcome = run(fault, seed=seed)
    outcomes.append(outcome)
    if outcome.result.startswith("skipped"):
        pytest.skip(outcome.result)
    assert outcome.result.startswith(PASSED), f"fault {fault.number}, {fault.what}: {outcome.result}\n{outcome.detail}"
    assert outcome.tests > 0
