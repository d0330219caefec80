"""Outputs, C, bias and the scalings of B on CPU tensors: each combination, accumulation in place, every refusal."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import Arguments, Call, Change, arguments_of, assert_refused, both, of, poisoned, same_bits

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M, N, K = 33, 136, 272  # tails everywhere: two N blocks, three K blocks
OUTPUTS, ADDENDS = (BF16, FP16, FP32), (None, BF16, FP32)


@pytest.fixture
def case() -> cases.Case:
    return cases.signed(M, N, K, seed=cases.fresh_seed(), c=FP32, bias=BF16)


@both
@pytest.mark.parametrize("scaling", Scaling)
def test_every_combination_is_the_reference(call: Call, scaling: Scaling) -> None:
    for c, bias in product(ADDENDS, ADDENDS):
        case = cases.signed(M, N, K, seed=cases.fresh_seed(), scaling=scaling, c=c, bias=bias)
        for dtype in OUTPUTS:
            expected = gemm_reference(*case.operands, **case.epilogue, out_dtype=dtype)
            out = call(*case.operands, **case.epilogue, out_dtype=dtype)
            assert out.is_contiguous() and same_bits(out, expected), f"{case}, {dtype}"
            given = poisoned(N, M, dtype=dtype).t()
            assert call(*case.operands, **case.epilogue, out=given, out_dtype=dtype) is given
            assert same_bits(given, expected), f"{case}, {dtype}, column-major"


@both
@pytest.mark.parametrize("scaling", Scaling)
def test_terms_are_exact_where_the_sum_is(call: Call, scaling: Scaling) -> None:
    for c, bias in product(ADDENDS, ADDENDS):
        case = cases.small_integers(M, N, K, seed=cases.fresh_seed(), scaling=scaling, c=c, bias=bias)
        case.check(call(*case.operands, **case.epilogue, out_dtype=FP32)).raise_if_failed(case)


@both
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_accumulation_in_place(call: Call, dtype: torch.dtype) -> None:
    case = cases.signed(M, N, K, seed=cases.fresh_seed(), c=dtype, bias=FP32)
    assert case.c is not None
    for memory in (case.c.clone(), case.c.t().contiguous().t(), case.c.repeat(1, 2)[:, N:]):
        expected = gemm_reference(*case.operands, **case.epilogue, out_dtype=dtype)
        for c in (memory, memory.view_as(memory)):
            memory.copy_(case.c)
            out = call(*case.operands, c=c, bias=case.bias, out=memory, out_dtype=dtype)
            assert out is memory and same_bits(out, expected), case


C_LAYOUTS: dict[str, Change] = {
    "column-major": lambda c: c.t().contiguous().t(),
    "every other column": lambda c: c.repeat_interleave(2, dim=1)[:, ::2],
    "odd pitch": lambda c: torch.cat([c, c[:, :1]], dim=1)[:, :-1],
    "one row for all": lambda c: c[:1].expand_as(c),
    "one number for all": lambda c: c[:1, :1].expand_as(c),
}


@both
@pytest.mark.parametrize("change", C_LAYOUTS.values(), ids=C_LAYOUTS)
def test_any_layout_of_c(call: Call, change: Change, case: cases.Case) -> None:
    assert case.c is not None
    c = change(case.c)
    expected = gemm_reference(*case.operands, c=c.contiguous(), bias=case.bias)
    assert same_bits(call(*case.operands, c=c, bias=case.bias), expected), case


ROW_SCALES: dict[str, Change] = {
    "row-major": Tensor.contiguous,
    "columns past": lambda s: s.repeat(1, 2)[:, : s.shape[1]],
    "one scale for all": lambda s: s[:1, :1].expand_as(s),
}


@both
@pytest.mark.parametrize("change", ROW_SCALES.values(), ids=ROW_SCALES)
def test_any_layout_of_row_scales(call: Call, change: Change) -> None:
    case = cases.distinct_scales(M, N, K, seed=cases.fresh_seed(), scaling=Scaling.ROW)
    scales_b = change(case.scales_b)
    expected = gemm_reference(case.a, case.scales_a, case.b, scales_b.contiguous())
    assert same_bits(call(case.a, case.scales_a, case.b, scales_b), expected), case


@both
@pytest.mark.parametrize("scaling", Scaling)
def test_one_row_of_b_is_scaled_either_way(call: Call, scaling: Scaling) -> None:
    case = cases.signed(M, 1, K, seed=cases.fresh_seed(), scaling=scaling, c=FP32, bias=FP32)
    assert case.scales_b.is_contiguous() == (scaling is Scaling.BLOCK)
    assert same_bits(call(*case.operands, **case.epilogue), gemm_reference(*case.operands, **case.epilogue)), case


@both
def test_float16_overflows_to_infinity(call: Call, case: cases.Case) -> None:
    bias = torch.tensor([65519.0, 65520.0, -65520.0, math.inf, math.nan]).repeat(N)[:N]
    out = call(torch.zeros_like(case.a), case.scales_a, case.b, case.scales_b, bias=bias, out_dtype=FP16)
    wanted = torch.tensor([65504.0, math.inf, -math.inf, math.inf, math.nan], dtype=FP16).repeat(N)[:N]
    assert torch.equal(out.nan_to_num(nan=1.0), wanted.expand(M, N).nan_to_num(nan=1.0)), case


@both
def test_no_rows(call: Call, case: cases.Case) -> None:
    assert call(case.a[:0], case.scales_a[:0], case.b, case.scales_b, c=poisoned(0, N), bias=case.bias).shape == (0, N)
    change = {**arguments_of(case), "a": case.a[:0], "scales_a": case.scales_a[:0]}
    assert_refused(call, change, f"(0, {N}) = (M, N)", f"({M}, {N})")


REFUSALS: dict[str, tuple[Arguments, str, str]] = {
    "c of another dtype": (of("c", lambda c: c.to(FP16)), "torch.bfloat16", "torch.float16"),
    "c of float64": (of("c", lambda c: c.double()), "torch.float32", "torch.float64"),
    "c of another shape": (of("c", lambda c: c[:, 1:]), f"({M}, {N}) = (M, N)", f"({M}, {N - 1})"),
    "c transposed": (of("c", lambda c: c.t()), f"({M}, {N}) = (M, N)", f"({N}, {M})"),
    "c of one dimension": (of("c", lambda c: c[0]), f"({M}, {N}) = (M, N)", f"({N},)"),
    "c on another device": (of("c", lambda c: c.to("meta")), "cpu", "meta"),
    "c that needs a gradient": (of("c", lambda c: c.requires_grad_()), "no gradient", "requires_grad=True"),
    "bias of another dtype": (of("bias", lambda x: x.to(FP16)), "torch.bfloat16 or torch.float32", "torch.float16"),
    "bias of another shape": (of("bias", lambda x: x[1:]), f"({N},) = (N,)", f"({N - 1},)"),
    "bias of two dimensions": (of("bias", lambda x: x[None]), f"({N},) = (N,)", f"(1, {N})"),
    "bias on another device": (of("bias", lambda x: x.to("meta")), "cpu", "meta"),
    "bias that needs a gradient": (of("bias", lambda x: x.requires_grad_()), "no gradient", "requires_grad=True"),
    "bias not contiguous": (of("bias", lambda x: x.repeat(2)[::2]), "stride 1", "stride 2"),
    "bias of one number": (of("bias", lambda x: x[:1].expand(N)), "stride 1", "stride 0"),
}


@both
@pytest.mark.parametrize(("change", "wanted", "found"), REFUSALS.values(), ids=REFUSALS)
def test_a_bad_term_is_refused_by_what_was_expected_and_what_came(
    call: Call, change: Arguments, wanted: str, found: str, case: cases.Case
) -> None:
    assert_refused(call, change(case), wanted, found)


def beside(name: str, case: cases.Case, *, shared_bytes: int) -> dict[str, Any]:
    """Arguments of which one begins in the memory of a float32 output, whose last bytes they share."""
    arguments = arguments_of(case)
    operand = arguments[name]
    end = 4 * M * N
    memory = torch.zeros(2 * end + operand.untyped_storage().nbytes(), dtype=torch.uint8)
    placed = memory[end - shared_bytes :].view(operand.dtype).as_strided(operand.shape, operand.stride())
    out = memory[:end].view(FP32).view(M, N)
    return {**arguments, name: placed.copy_(operand), "out": out, "out_dtype": FP32}


@both
@pytest.mark.parametrize("name", ["a", "scales_a", "b", "scales_b", "c", "bias"])
def test_an_output_may_lie_beside_an_operand_but_not_over_it(call: Call, name: str, case: cases.Case) -> None:
    expected = gemm_reference(*case.operands, **case.epilogue, out_dtype=FP32)
    assert same_bits(call(**beside(name, case, shared_bytes=0)), expected), case
    assert_refused(call, beside(name, case, shared_bytes=4), "memory of its own", f"memory that {name} occupies")


IN_THE_MEMORY_OF_C: dict[str, Change] = {
    "its first row for all": lambda out: out[:1].expand(M, N),
    "a column on": lambda out: out.as_strided((M, N), out.stride(), 1),
    "the columns between": lambda out: out.as_strided((M, N), out.stride(), N),
    "another dtype": lambda out: out.view(BF16)[:, :N],
}


@both
@pytest.mark.parametrize("change", IN_THE_MEMORY_OF_C.values(), ids=IN_THE_MEMORY_OF_C)
def test_c_in_the_memory_of_the_output_but_not_one_with_it_is_refused(
    call: Call, change: Change, case: cases.Case
) -> None:
    out = torch.zeros(M + 1, 2 * N)[:M, :N]
    arguments = {**arguments_of(case), "c": change(out), "out": out, "out_dtype": FP32}
    assert_refused(call, arguments, "memory of its own", "memory that c occupies")
    assert not out.any()


PLANNED_C = [(None, FP32), (BF16, FP32), (FP32, BF16), (FP32, None)]


@pytest.mark.parametrize(("planned", "given"), PLANNED_C)
def test_a_plan_takes_the_c_that_it_was_made_for(
    planned: torch.dtype | None, given: torch.dtype | None, case: cases.Case
) -> None:
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M, c_dtype=planned)
    c = None if given is None else poisoned(M, N, dtype=given)
    for m in (M, 0):
        arguments = {"a": case.a[:m], "scales_a": case.scales_a[:m], "c": None if c is None else c[:m]}
        assert_refused(plan, arguments, f"c: expected {planned}", f"got {given}")


@pytest.mark.parametrize("dtype", [FP16, torch.float64, torch.int32])
def test_a_plan_for_a_c_of_no_kernel_is_refused(dtype: torch.dtype, case: cases.Case) -> None:
    arguments = {"b": case.b, "scales_b": case.scales_b, "max_m": M, "c_dtype": dtype}
    assert_refused(fp8gemm.plan, arguments, "c_dtype: expected one of torch.bfloat16, torch.float32", f"got {dtype}")
