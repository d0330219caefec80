"""Faults put into right outputs: the report must name each of them, and nothing where it cannot know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.cases import Case
from tests.simulation import float32_kernel, rounded_towards_zero, simulate_kernel

M, N, K = 66, 270, 832  # three row blocks of B, seven K blocks, the last of each partial
INSIDE, TILE, BLOCK = slice(1, M - 1), slice(128, 256), 3  # where faults are put: so that every neighbour exists
EPILOGUE = {"c": torch.bfloat16, "bias": torch.float32}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]

Break = Callable[[Case], Case]


def with_block_of_a(factor: float) -> Break:
    def change(case: Case) -> Case:
        scales_a = case.scales_a.clone()
        scales_a[:, BLOCK] *= factor
        return replace(case, scales_a=scales_a)

    return change


def with_neighbour(name: str, dim: int, by: int, *, block: int | None = None) -> Break:
    """One operand's scales from `by` places on along `dim`, for one K block or all."""

    def change(case: Case) -> Case:
        scales = getattr(case, name)
        wrong = scales.roll(-by, dim)
        if block is not None:
            only_here = torch.arange(scales.shape[1]) == block
            wrong = wrong.where(only_here, scales)
        return replace(case, **{name: wrong})

    return change


def without_blocks_from(block: int) -> Break:
    def change(case: Case) -> Case:
        scales_a = case.scales_a.clone()
        scales_a[:, block:] = 0
        return replace(case, scales_a=scales_a)

    return change


def of_term(name: str, change_term: Callable[[torch.Tensor], torch.Tensor | None]) -> Break:
    return lambda case: replace(case, **{name: change_term(getattr(case, name))})


FAULTS: dict[str, Break] = {
    "K block 3 missing": with_block_of_a(0.0),
    "K block 3 added twice": with_block_of_a(2.0),
    "K blocks 5 and later missing": without_blocks_from(5),
    "K block 6 missing": without_blocks_from(6),
    "a product of zero": without_blocks_from(0),
    "K block 3 with scales_a of the next K block": with_neighbour("scales_a", 1, 1, block=BLOCK),
    "K block 3 with scales_a of the previous row": with_neighbour("scales_a", 0, -1, block=BLOCK),
    "K block 3 with scales_b of the previous K block": with_neighbour("scales_b", 1, -1, block=BLOCK),
    "every K block with scales_a of the next row": with_neighbour("scales_a", 0, 1),
    "C missing": of_term("c", lambda c: None),
    "C added twice": of_term("c", lambda c: 2 * c),
    "C of the next row": of_term("c", lambda c: c.roll(-1, 0)),
    "C of the previous column": of_term("c", lambda c: c.roll(1, 1)),
    "bias missing": of_term("bias", lambda bias: None),
    "bias added twice": of_term("bias", lambda bias: 2 * bias),
    "bias of the next column": of_term("bias", lambda bias: bias.roll(-1)),
}
FAULTS_OF_BLOCKS = {
    "K block 3 with scales_b of the next row of blocks": with_neighbour("scales_b", 0, 1, block=BLOCK),
    "every K block with scales_b of the previous row of blocks": with_neighbour("scales_b", 0, -1),
}
FAULTS_OF_ROWS = {
    "K block 3 with scales_b of the next row": with_neighbour("scales_b", 0, 1, block=BLOCK),
    "every K block with scales_b of the previous row": with_neighbour("scales_b", 0, -1),
}
FRESH_SEED = cases.fresh_seed()


@cache
def right(scaling: Scaling, dtype: torch.dtype, *, seed: int = FRESH_SEED) -> tuple[Case, torch.Tensor]:
    """A case with C and bias, and its right output: made once, copied by who changes it."""
    case = cases.signed(M, N, K, seed=seed, scaling=scaling, **EPILOGUE)
    unlike = {name: unlike_neighbours(getattr(case, name), sizes, seed) for name, sizes in SIZES.items()}
    case = replace(case, **unlike)
    return case, float32_kernel(case, out_dtype=dtype)


# Along a row or a column of the product a block's wrong scale is one factor, as are a block that is missing (0) and one
# added twice (2). With these sizes, in a pattern in which the four neighbours of a scale have the four other sizes, no
# two of all these factors change a block by amounts within 7 % of each other: else two faults would look alike.
SIZES = {"scales_a": (0.84, 1.09, 1.84, 1.42, 2.39), "scales_b": (0.89, 0.49, 0.26, 1.64, 0.37)}


def unlike_neighbours(scales: torch.Tensor, sizes: tuple[float, ...], seed: int) -> torch.Tensor:
    """Scales about as large in a pattern of these sizes, no two of them equal."""
    rows, blocks = torch.arange(scales.shape[0])[:, None], torch.arange(scales.shape[1])
    random = torch.rand(scales.shape, generator=torch.Generator().manual_seed(seed + len(scales)))
    return scales.mean() * torch.tensor(sizes)[(rows + 2 * blocks) % len(sizes)] * (1 + random / 64)


def worst_place(out: torch.Tensor, wrong: torch.Tensor) -> tuple[int, int]:
    """Where in the tile a fault changes most."""
    change = (wrong.double() - out.double())[INSIDE, TILE].abs()
    row, column = divmod(int(change.argmax()), change.shape[1])
    return row + INSIDE.start, column + TILE.start


def diagnosis_of(case: Case, out: torch.Tensor) -> str:
    report = case.check(out)
    assert report.failed and report.diagnosis, f"{case}: the fault went unnoticed\n{report}"
    assert report.diagnosis in str(report)
    return report.diagnosis


every_fault = pytest.mark.parametrize(
    ("scaling", "fault"),
    [
        *((Scaling.BLOCK, name) for name in FAULTS | FAULTS_OF_BLOCKS),
        *((Scaling.ROW, name) for name in FAULTS_OF_ROWS),
    ],
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", ["tile", "row", "column"])
@every_fault
def test_each_fault_is_named_wherever_it_is(scaling, fault, place, dtype):
    case, out = right(scaling, dtype)
    assert_named(fault, place, case, out)


@every_fault
def test_each_fault_is_named_in_one_element(scaling, fault):
    """In FP32; rounded to fewer bits, one element may have too many explanations. The seed is fixed, because once in a
    few thousand elements several faults come within 1e-3 of each other by luck, and then none is named."""
    case, out = right(scaling, torch.float32, seed=1)
    assert_named(fault, "element", case, out)


def assert_named(fault: str, place: str, case: Case, out: torch.Tensor) -> None:
    """With the fault at that place of a right output."""
    wrong = float32_kernel((FAULTS | FAULTS_OF_BLOCKS | FAULTS_OF_ROWS)[fault](case), out_dtype=out.dtype)
    row, column = worst_place(out, wrong)
    at = {"tile": (INSIDE, TILE), "row": (row, TILE), "column": (INSIDE, column), "element": (row, column)}[place]
    faulty = out.clone()
    faulty[at] = wrong[at]
    diagnosis = diagnosis_of(case, faulty)
    assert fault in diagnosis and "residual" in diagnosis, f"{case}, {place}: {diagnosis}"


@pytest.mark.parametrize("fault", ["K block 3 missing", "every K block with scales_a of the next row"])
@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.small_integers])
def test_a_tensor_core_s_own_error_is_no_obstacle(maker, fault):
    case = maker(33, 128, K, seed=cases.fresh_seed())
    wrong = simulate_kernel(FAULTS[fault](case))
    out = simulate_kernel(case)
    case.check(out).raise_if_failed(case)
    row = 1 + int((wrong.double() - out.double())[1:-1].norm(dim=1).div(out.double()[1:-1].norm(dim=1)).argmax())
    out[row] = wrong[row]
    assert fault in diagnosis_of(case, out), str(case)


def test_a_single_k_block_and_an_output_of_zero():
    case = cases.signed(70, 140, 112, seed=cases.fresh_seed(), c=torch.float32)
    out = float32_kernel(case)
    out[10] = float32_kernel(replace(case, c=None))[10]
    assert "C missing" in diagnosis_of(case, out), str(case)
    out = float32_kernel(case)
    out[:, 128:] = 0
    assert "an output of zero" in diagnosis_of(case, out), str(case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_is_not_explained(dtype):
    case, out = right(Scaling.BLOCK, dtype)
    noisy = out.clone()
    noisy[40] = out[40].roll(7)
    assert diagnosis_of(case, noisy) == "no single K block explains it", str(case)


def test_one_element_of_few_bits_and_many_blocks_is_not_guessed_at():
    """Some of the hundreds of faults come close to any error. The seed is fixed, because luck can do it too."""
    case = cases.signed(64, 64, 7168, seed=1)
    out = gemm_reference(*case.operands)
    out[5, 7] += out.abs().mean()
    assert diagnosis_of(case, out) == "no single K block explains it"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wrong_rounding_is_named(dtype):
    """Towards zero instead of to nearest even: every error is below one step."""
    case = cases.small_integers(64, 128, K, seed=cases.fresh_seed())
    exact = gemm_reference(*case.operands, out_dtype=torch.float32)
    assert "rounded the wrong way" in diagnosis_of(case, rounded_towards_zero(exact, dtype)), str(case)


def test_a_right_output_has_no_diagnosis():
    case, out = right(Scaling.BLOCK, torch.bfloat16)
    report = case.check(out)
    assert report.passed and report.diagnosis == ""


def test_special_values_elsewhere_do_not_hide_a_fault():
    case = cases.small_integers(64, 256, 512, seed=cases.fresh_seed())
    case.scales_a[9, 1] = torch.inf
    case.scales_b[1, 2] = torch.nan
    out = gemm_reference(*case.operands)
    out[10] = gemm_reference(*FAULTS["K block 3 missing"](case).operands)[10]
    assert "K block 3 missing" in diagnosis_of(case, out), str(case)
