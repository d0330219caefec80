"""Plans: how far they reach, that they follow their tensors, what copies of them are."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import Change, same_bits

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M, N, K = 33, 136, 272  # tails everywhere: two N blocks, three K blocks


@pytest.fixture
def case() -> cases.Case:
    return cases.signed(M, N, K, seed=cases.fresh_seed())


@pytest.fixture
def expected(case: cases.Case) -> Tensor:
    return gemm_reference(*case.operands)


@pytest.mark.parametrize("max_m", [0, -1, 2**20 + 1])
def test_a_plan_for_too_few_or_many_rows_is_refused(max_m: int, case: cases.Case) -> None:
    with pytest.raises(InputError, match=f"max_m: expected 1 to 1048576, got {max_m}"):
        fp8gemm.plan(case.b, case.scales_b, max_m=max_m)


def test_a_plan_serves_up_to_max_m_rows_and_no_more(case: cases.Case, expected: Tensor) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M - 1)
    for m in (0, 1, M - 1):
        assert same_bits(plan(case.a[:m], case.scales_a[:m]), expected[:m])
    with pytest.raises(InputError, match=f"at most max_m = {M - 1} rows, got {M}"):
        plan(case.a, case.scales_a)


def test_a_plan_follows_its_weight(case: cases.Case, expected: Tensor) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    assert same_bits(plan(case.a, case.scales_a), expected)
    other = cases.signed(M, N, K, seed=cases.fresh_seed())
    case.b.data, case.scales_b.data = other.b, other.scales_b
    moved = gemm_reference(case.a, case.scales_a, other.b, other.scales_b)
    assert not same_bits(moved, expected)
    assert same_bits(plan(case.a, case.scales_a), moved)
    other.b.zero_()
    assert not plan(case.a, case.scales_a).any()


MOVES: dict[str, tuple[Change, str]] = {
    "K no longer contiguous": (lambda b: b.t().contiguous().t(), "K contiguous"),
    "another dtype": (lambda b: b.float(), "float8_e4m3fn"),
    "fewer blocks of rows": (lambda b: b[:8].clone(), r"\(1, 3\)"),
    "fewer blocks of rows, in place": (lambda b: b[:8], r"\(1, 3\)"),
    "another K": (lambda b: b[:, :128].contiguous(), r"\(2, 1\)"),
}


@pytest.mark.parametrize(("move", "message"), MOVES.values(), ids=MOVES)
def test_a_weight_that_moved_into_a_bad_one_is_noticed_each_time(move: Change, message: str, case: cases.Case) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    plan(case.a, case.scales_a)
    case.b.data = move(case.b)
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            plan(case.a, case.scales_a)


def test_a_weight_that_changed_its_layout_in_place_is_noticed() -> None:
    """Its address alone does not tell."""
    case = cases.signed(M, 256, 256, seed=cases.fresh_seed())
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    case.b.data = case.b.t()
    with pytest.raises(InputError, match="K contiguous"):
        plan(case.a, case.scales_a)


def test_the_same_bytes_under_another_dtype_are_noticed(case: cases.Case) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    case.b.data = case.b.view(torch.float8_e5m2)
    with pytest.raises(InputError, match="b: expected torch.float8_e4m3fn.*, got torch.float8_e5m2"):
        plan(case.a, case.scales_a)


def test_a_plan_follows_its_bias() -> None:
    case = cases.signed(M, N, K, seed=cases.fresh_seed(), bias=FP32)
    assert case.bias is not None
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M, bias=case.bias)
    for change in (Tensor.neg, Tensor.bfloat16, torch.zeros_like):
        case.bias.data = change(case.bias)
        assert same_bits(plan(case.a, case.scales_a), gemm_reference(*case.operands, bias=case.bias)), case
    case.bias.fill_(1.0)
    assert same_bits(plan(case.a, case.scales_a), gemm_reference(*case.operands, bias=case.bias)), case
    for bad, message in ((case.bias[1:], "bias: expected"), (case.bias.to(FP16), "got torch.float16")):
        plan.bias = bad
        for _ in range(2):
            with pytest.raises(InputError, match=message):
                plan(case.a, case.scales_a)


def test_a_plan_follows_its_scaling(case: cases.Case) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M)
    plan.scales_b = cases.signed(M, N, K, seed=1, scaling=Scaling.ROW).scales_b
    assert same_bits(plan(case.a, case.scales_a), gemm_reference(case.a, case.scales_a, case.b, plan.scales_b)), case


def through_pickle(plan: fp8gemm.Plan) -> fp8gemm.Plan:
    loaded: fp8gemm.Plan = pickle.loads(pickle.dumps(plan))
    return loaded


def through_a_file(plan: fp8gemm.Plan) -> fp8gemm.Plan:
    file = io.BytesIO()
    torch.save(plan, file)
    file.seek(0)
    loaded: fp8gemm.Plan = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle, through_a_file])
@pytest.mark.parametrize("scaling", Scaling)
def test_a_copy_is_a_plan_of_its_own(duplicate: Callable[[fp8gemm.Plan], fp8gemm.Plan], scaling: Scaling) -> None:
    case = cases.signed(M, N, K, seed=cases.fresh_seed(), scaling=scaling, c=FP32, bias=BF16)
    options = {"max_m": M, "out_dtype": FP16, "c_dtype": FP32, "batch_invariant": True}
    plan = fp8gemm.plan(case.b, case.scales_b, bias=case.bias, **options)
    twin = duplicate(plan)
    before = gemm_reference(*case.operands, **case.epilogue, out_dtype=FP16)
    for tensor in (plan.b, plan.scales_b, plan.bias):
        assert tensor is not None
        tensor.zero_()
    assert {name: getattr(twin, name) for name in options} == options
    assert same_bits(twin(case.a, case.scales_a, c=case.c), before), case
    assert not same_bits(plan(case.a, case.scales_a, c=case.c), before), case


def test_a_weight_and_its_plan_stay_together_in_a_copy(case: cases.Case) -> None:
    weight = torch.nn.Parameter(case.b, requires_grad=False)
    b, plan = copy.deepcopy((weight, fp8gemm.plan(weight, case.scales_b, max_m=M)))
    assert plan.b is b and plan.bias is None
    assert same_bits(through_pickle(plan)(case.a, case.scales_a), gemm_reference(*case.operands)), case
