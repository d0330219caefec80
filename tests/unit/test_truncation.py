"""What truncation may excuse: rare elements, up to what it can do to them, and no more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fp8gemm.reference import gemm_magnitude, gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.diagnosis import Inputs
from tests.simulation import simulate_kernel
from tests.truncation import truncation_bound

LIMIT = 3e-4


def everywhere(case: cases.Case) -> tuple[Tensor, Tensor]:
    m, n = case.a.shape[0], case.b.shape[0]
    return torch.arange(m).repeat_interleave(n), torch.arange(n).repeat(m)


def bound_of(case: cases.Case) -> Tensor:
    bound = truncation_bound(Inputs(*case.operands, case.c, case.bias), *everywhere(case))
    return bound.view(case.a.shape[0], case.b.shape[0])


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("k", [16, 64, 144, 400])
@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.heavy_tailed])
def test_a_simulated_tensor_core_stays_within_the_bound(maker, k: int, scaling: Scaling) -> None:
    case = maker(40, 130, k, seed=cases.fresh_seed(), scaling=scaling)
    error = (
        simulate_kernel(case, out_dtype=torch.float32) - gemm_reference(*case.operands, out_dtype=torch.float64)
    ).abs()
    bound, magnitude = bound_of(case), gemm_magnitude(*case.operands)
    assert (error <= bound + 2.0**-20 * magnitude).all(), case  # the FP32 sum over blocks rounds too
    assert float((bound / magnitude).median()) < 8e-3, case
    assert float((error / bound).max()) > 0.05, f"{case}: a bound that nothing comes near would excuse anything"


def nearly_exact(m: int, n: int) -> tuple[cases.Case, Tensor, Tensor]:
    case = cases.signed(m, n, 64, seed=cases.fresh_seed())
    return case, gemm_reference(*case.operands, out_dtype=torch.float32), gemm_magnitude(*case.operands)


def test_one_element_may_be_as_wrong_as_truncation_can_make_it() -> None:
    case, out, magnitude = nearly_exact(40, 130)
    bound = bound_of(case)
    at = divmod(int((bound / magnitude).argmax()), 130)
    assert bound[at] > 1.2 * LIMIT * magnitude[at]
    for share, passes in ((0.9, True), (1.1, False)):
        wrong = out.clone()
        wrong[at] += share * float(bound[at])
        report = case.check(wrong)
        assert ("element" not in report.failed) is passes, f"{case}\n{report}"


def test_two_elements_of_a_small_output_may_not() -> None:
    case, out, magnitude = nearly_exact(40, 130)
    for element in (10, 20):
        out.view(-1)[element] += 1.1 * LIMIT * float(magnitude.view(-1)[element])
    assert "element" in case.check(out).failed, case
