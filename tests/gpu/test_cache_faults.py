"""The faults of the cache and the JIT that must not hurt, on a machine with a GPU: the table of `tests.cache_faults`.

Each runs in a process of its own under a time limit. With FP8GEMM_TEST_REPORT_DIR set, a run of all of them writes
cache-faults-h200.json there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.cache_faults import FAULTS, needs_gpu
from tests.gpu.faults.runner import PASSED, Outcome, run, table
from tests.gpu.faults.table import Fault
from tests.mutations.report import write_report


@pytest.fixture(scope="module")
def outcomes(device: torch.device, say: Callable[[str], None]) -> Iterator[list[Outcome]]:
    """Where each fault's outcome is put down; the table is drawn at the end."""
    found: list[Outcome] = []
    yield found
    tests, seconds = sum(each.tests for each in found), sum(each.seconds for each in found)
    say(f"cache faults: {len(found)} of {len(FAULTS)}, {tests} tests passed in their own processes, {seconds:.0f} s")
    say(table(found))
    if len(found) == len(FAULTS):
        write_report("cache-faults-h200.json", device, faults=[each.row for each in found])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number:02d}")
def test_cache_fault(fault: Fault, outcomes: list[Outcome], seed: int) -> None:
    torch.cuda.empty_cache()  # what this process keeps, the other one cannot have
    outcome = run(fault, seed=seed)
    outcomes.append(outcome)
    assert outcome.result.startswith(PASSED), f"fault {fault.number}, {fault.what}: {outcome.result}\n{outcome.detail}"
    assert outcome.tests > 0
    assert "GPU" not in outcome.result or not needs_gpu(fault), "what needs a GPU has one here"
