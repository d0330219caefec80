"""The faults of the cache and the JIT that must not hurt, on a machine with a GPU: the table of `tests.cache_faults`.

Each runs in a process of its own under a time limit. With FP8GEMM_TEST_REPORT_DIR set, a run of all of them writes
cache-faults-h200.json there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.cache_faults import FAULTS, needs_gpu
from tests.gpu.faults.outcomes import Outcomes, put_down, require_passed
from tests.gpu.faults.table import Fault


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, device: torch.device, say: Callable[[str], None]) -> Iterator[Outcomes]:
    with put_down("cache-faults", FAULTS, request.session, device, say) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number:02d}")
def test_cache_fault(fault: Fault, outcomes: Outcomes, seed: int) -> None:
    outcome = outcomes.of(fault, seed=seed)
    require_passed(outcome)
    assert "GPU" not in outcome.result or not needs_gpu(fault), "what needs a GPU has one here"
