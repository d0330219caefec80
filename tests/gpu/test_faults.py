"""The faults that must not hurt, each in a process of its own under a time limit: the table of `tests.gpu.faults`.

    pytest tests/gpu/test_faults.py -k 07               # one of them, as here
    pytest tests/gpu/faults/values.py -k fault_07       # the same in this process

With FP8GEMM_TEST_REPORT_DIR set, a run of all of them writes faults-h200.json there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.gpu.faults.outcomes import Outcomes, put_down, require_passed
from tests.gpu.faults.table import FAULTS, Fault


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, device: torch.device, say: Callable[[str], None]) -> Iterator[Outcomes]:
    with put_down("faults", FAULTS, request.session, device, say) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number:02d}")
def test_fault(fault: Fault, outcomes: Outcomes, seed: int) -> None:
    outcome = outcomes.of(fault, seed=seed)
    if outcome.result.startswith("skipped"):
        pytest.skip(outcome.result)
    require_passed(outcome)
