"""What truncation may excuse: rare elements and short rows, up to what it does to them, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
import torch
from torch import Tensor

from fp8gemm.reference import gemm_magnitude, gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.diagnosis import Inputs
from tests.simulation import simulate_kernel
from tests.truncation import truncation_bound, truncation_error

LIMIT = 3e-4


def everywhere(case: cases.Case) -> tuple[Tensor, Tensor]:
    m, n = case.a.shape[0], case.b.shape[0]
    return torch.arange(m).repeat_interleave(n), torch.arange(n).repeat(m)


def everywhere_in(case: cases.Case, figure: Callable[[Inputs, Tensor, Tensor], Tensor]) -> Tensor:
    of_elements = figure(Inputs(*case.operands, case.c, case.bias), *everywhere(case))
    return of_elements.view(case.a.shape[0], case.b.shape[0])


def bound_of(case: cases.Case) -> Tensor:
    return everywhere_in(case, truncation_bound)


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("k", [16, 64, 144, 400])
@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.heavy_tailed])
def test_a_simulated_tensor_core_stays_within_the_bound(maker, k: int, scaling: Scaling) -> None:
    # Of signed tensors of 40 x 130 with K = 400, whose errors cancel, one in forty has no element that uses 0.05.
    case = maker(80, 260, k, seed=cases.fresh_seed(), scaling=scaling)
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


def nearly_exact_beside_a_model(monkeypatch: pytest.MonkeyPatch) -> tuple[cases.Case, Tensor, Tensor]:
    """Half a million elements, and the errors that the model is made to have for them: each above the limit."""
    case, out, magnitude = nearly_exact(1000, 520)
    modelled = 1.1 * LIMIT * magnitude
    monkeypatch.setattr("tests.numerics.truncation_error", lambda inputs, rows, columns: modelled[rows, columns])
    return case, out, modelled


@pytest.mark.parametrize(("times", "passes"), [(1.5, True), (2.5, False)])
def test_three_elements_of_half_a_million_may_be_as_wrong_as_the_model_says(times, passes, monkeypatch) -> None:
    case, out, modelled = nearly_exact_beside_a_model(monkeypatch)
    for element in (10, 20_000, 500_000):
        out.view(-1)[element] += times * float(modelled.view(-1)[element])
    report = case.check(out)
    assert ("element" not in report.failed) is passes, f"{case}\n{report}"


def test_more_than_one_in_a_hundred_thousand_may_not_whatever_the_model_says(monkeypatch) -> None:
    case, out, modelled = nearly_exact_beside_a_model(monkeypatch)
    out.view(-1)[:70_000:10_000] += modelled.view(-1)[:70_000:10_000].float()
    assert "element" in case.check(out).failed, case


@cache
def hurt_by_truncation() -> tuple[cases.Case, int]:
    """A case with a row that a right kernel gets more wrong than the RMS gates allow, and which row that is."""
    for seed in chain([100336], range(10_000)):  # one in 300 is such; the first is, unless PyTorch draws otherwise
        case = cases.signed(130, 101, 144, seed=seed, scaling=Scaling.ROW)
        error = everywhere_in(case, truncation_error)
        figure = error.norm(dim=1) / gemm_reference(*case.operands, out_dtype=torch.float64).norm(dim=1)
        if figure.max() > 1.02 * LIMIT:
            return case, int(figure.argmax())
    raise AssertionError("no such case")


def with_error(case: cases.Case, share: float, row: int) -> Tensor:
    """The right output in FP32, one row as wrong as truncation makes it, times `share`."""
    out = gemm_reference(*case.operands, out_dtype=torch.float32)
    out[row] += share * everywhere_in(case, truncation_error)[row].to(torch.float32)
    return out


@pytest.mark.parametrize(("share", "passes"), [(1.0, True), (1.9, True), (2.1, False)])
def test_a_row_of_few_elements_may_be_as_wrong_as_truncation_makes_it(share: float, passes: bool) -> None:
    case, row = hurt_by_truncation()
    gates = {gate.name: gate for gate in case.check(with_error(case, share, row)).gates}
    assert gates["rms row"].passed is passes, case
    alone = replace(case, a=case.a[row : row + 1], scales_a=case.scales_a[row : row + 1])
    gates = {gate.name: gate for gate in alone.check(with_error(alone, share, 0)).gates}
    assert all(gates[f"rms {group}"].passed is passes for group in ("tensor", "row", "tile")), alone


@pytest.mark.parametrize(("share", "passes"), [(1.0, True), (1.9, True), (2.1, False)])
def test_so_may_several_rows_at_once(share: float, passes: bool) -> None:
    """Where the scales of B let a last K block of 16 columns outweigh the one before."""
    for seed in chain([1314], range(10_000)):  # one in 200 is such
        case = cases.signed(129, 129, 144, seed=seed)
        error, exact = everywhere_in(case, truncation_error), gemm_reference(*case.operands, out_dtype=torch.float64)
        if (error.norm(dim=1) > 0.85 * LIMIT * exact.norm(dim=1)).sum() > 2:
            break
    out = (exact + share * error).to(torch.float32)
    assert ("rms row" not in case.check(out).failed) is passes, case


def test_a_row_that_truncation_does_not_hurt_may_not() -> None:
    case, row = hurt_by_truncation()
    out = with_error(case, 1.0, row)
    out[(row + 1) % 130] *= 1 + 1.1 * LIMIT
    assert "rms row" in case.check(out).failed, case


def test_a_row_of_many_elements_may_not() -> None:
    case, row = hurt_by_truncation()
    often = replace(case, b=case.b.repeat(11, 1), scales_b=case.scales_b.repeat(11, 1))
    assert often.b.shape[0] > 1024 and "rms row" in often.check(with_error(often, 1.0, row)).failed, often


def test_a_simulated_kernel_errs_as_the_model_says() -> None:
    """With one K block, so that no sum in FP32 rounds besides."""
    case = cases.signed(40, 130, 128, seed=cases.fresh_seed())
    error = simulate_kernel(case, out_dtype=torch.float32) - gemm_reference(*case.operands, out_dtype=torch.float64)
    modelled = everywhere_in(case, truncation_error)
    assert float((error - modelled).norm() / modelled.norm()) < 0.01, case
