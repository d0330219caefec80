"""Properties that the reference must have for any shape, scaling, output, C, bias and layout."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp8gemm.reference import dequantize_activation, dequantize_weight, gemm_magnitude, gemm_reference
from fp8gemm.scales import to_mn_major
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.cases import Case

OUTPUTS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
ADDENDS = [None, torch.bfloat16, torch.float32]
MAKERS = [cases.signed, cases.positive, cases.heavy_tailed, cases.small_integers]

few = settings(max_examples=60, deadline=None)
many = settings(max_examples=150, deadline=None)
sizes = st.integers(1, 300)
depths = st.integers(1, 44).map(lambda count: 16 * count)
seeds = st.integers(0, 2**31 - 1)


@st.composite
def a_case(draw: st.DrawFn, makers: list = MAKERS) -> Case:
    return draw(st.sampled_from(makers))(
        draw(sizes),
        draw(sizes),
        draw(depths),
        seed=draw(seeds),
        scaling=draw(st.sampled_from(Scaling)),
        c=draw(st.sampled_from(ADDENDS)),
        bias=draw(st.sampled_from(ADDENDS)),
    )


def product(case: Case, dtype: torch.dtype) -> Tensor:
    return gemm_reference(*case.operands, **case.epilogue, out_dtype=dtype)


def directly(case: Case) -> Tensor:
    """Both operands dequantised in float64, multiplied there, C and bias added."""
    dequantize_b = dequantize_activation if case.scaling is Scaling.ROW else dequantize_weight
    out = dequantize_activation(case.a, case.scales_a, dtype=torch.float64)
    out = out @ dequantize_b(case.b, case.scales_b, dtype=torch.float64).T
    for addend in case.epilogue.values():
        out = out + addend.to(torch.float64)
    return out


def some_rows(case: Case, rows: Tensor | slice) -> Case:
    """The product of these rows of A, with the rows of C that belong to them."""
    codes = case.a.view(torch.uint8)[rows].view(case.a.dtype)
    return replace(case, a=codes, scales_a=case.scales_a[rows], c=None if case.c is None else case.c[rows])


def some_columns(case: Case, columns: Tensor) -> Case:
    """The product of these rows of B; only for scales that each row has of its own."""
    codes = case.b.view(torch.uint8)[columns].view(case.b.dtype)
    c, bias = (None if term is None else term[..., columns] for term in (case.c, case.bias))
    return replace(case, b=codes, scales_b=case.scales_b[columns], c=c, bias=bias)


@many
@given(case=a_case([cases.small_integers]), dtype=st.sampled_from(OUTPUTS))
def test_integers_equal_the_dequantised_product(case: Case, dtype: torch.dtype) -> None:
    exact = directly(case)
    assert torch.equal(product(case, torch.float64), exact)
    if dtype in (torch.float32, torch.float64):
        assert torch.equal(product(case, dtype).double(), exact)
    else:  # exact in float32, so that PyTorch's conversion rounds once
        assert torch.equal(product(case, dtype), exact.to(torch.float32).to(dtype))


@few
@given(case=a_case())
def test_any_data_is_the_dequantised_product_but_for_the_rounding_of_s(case: Case) -> None:
    error = (product(case, torch.float64) - directly(case)).abs()
    assert (error <= 2.0**-23 * gemm_magnitude(*case.operands, **case.epilogue)).all()


@few
@given(case=a_case(), dtype=st.sampled_from(OUTPUTS), data=st.data())
def test_rows_and_columns_are_independent(case: Case, dtype: torch.dtype, data: st.DataObject) -> None:
    """To the bit: whatever order the BLAS adds in, block sums are exact."""
    m, n = case.a.shape[0], case.b.shape[0]
    out = product(case, dtype)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(case.seed))
    assert torch.equal(product(some_rows(case, order), dtype), out[order])
    row = data.draw(st.integers(0, m - 1), label="row")
    assert torch.equal(product(some_rows(case, slice(row, row + 1)), dtype), out[row : row + 1])
    if case.scaling is Scaling.ROW:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(case.seed))
        assert torch.equal(product(some_columns(case, order), dtype), out[:, order])


@few
@given(case=a_case(), dtype=st.sampled_from(OUTPUTS[:3]), data=st.data())
def test_one_change_reaches_its_own_elements_alone(case: Case, dtype: torch.dtype, data: st.DataObject) -> None:
    (m, k), n = case.a.shape, case.b.shape[0]
    row, column = data.draw(st.integers(0, m - 1), label="row"), data.draw(st.integers(0, n - 1), label="column")
    at_k = data.draw(st.integers(0, k - 1), label="k")
    changed = replace(case, a=case.a.clone(), scales_a=case.scales_a.clone(), scales_b=case.scales_b.clone())
    hit = torch.zeros(m, n, dtype=torch.bool)
    what = data.draw(st.sampled_from(["code", "scale of A", "scale of B", *case.epilogue]), label="what")
    if what == "code":
        changed.a[row, at_k] = torch.nan
        hit[row] = True
    elif what == "scale of A":
        changed.scales_a[row, at_k // SCALE_BLOCK] = torch.nan
        hit[row] = True
    elif what == "scale of B" and case.scaling is Scaling.ROW:
        changed.scales_b[column, at_k // SCALE_BLOCK] = torch.nan
        hit[:, column] = True
    elif what == "scale of B":
        block = column // SCALE_BLOCK
        changed.scales_b[block, at_k // SCALE_BLOCK] = torch.nan
        hit[:, block * SCALE_BLOCK : (block + 1) * SCALE_BLOCK] = True
    else:
        term = getattr(case, what).clone()
        term[(row, column) if what == "c" else column] = torch.nan
        changed = replace(changed, **{what: term})
        hit[(row, column) if what == "c" else (slice(None), column)] = True
    out, after = product(case, dtype), product(changed, dtype)
    assert torch.equal(after.isnan(), hit) and torch.equal(after[~hit], out[~hit])


def split(case: Case, block: int) -> tuple[Case, Case]:
    """K before and from a K block on; C belongs to the first part and the bias to the second."""
    k = block * SCALE_BLOCK
    first = (case.a[:, :k], case.scales_a[:, :block], case.b[:, :k], case.scales_b[:, :block])
    second = (case.a[:, k:], case.scales_a[:, block:], case.b[:, k:], case.scales_b[:, block:])
    return Case(case.data, case.seed, *first, case.c), Case(case.data, case.seed, *second, bias=case.bias)


@few
@given(case=a_case(), data=st.data())
def test_k_in_two_calls_chained_through_c(case: Case, data: st.DataObject) -> None:
    """As gradients are accumulated: equal but for the roundings between, and for integers equal."""
    assume(case.scales_a.shape[1] > 1)
    block = data.draw(st.integers(1, case.scales_a.shape[1] - 1), label="K block")
    first, second = split(case, block)
    chained = product(replace(second, c=product(first, torch.float32)), torch.float32)
    whole = product(case, torch.float32)
    if case.data == "exact":
        assert torch.equal(chained, whole)
    magnitude = gemm_magnitude(*case.operands, **case.epilogue)
    assert ((chained.double() - whole.double()).abs() <= 2.0**-22 * magnitude).all()


@few
@given(case=a_case(), dtype=st.sampled_from(OUTPUTS), pitch=st.integers(0, 40), transposed=st.booleans())
def test_layouts_change_nothing(case: Case, dtype: torch.dtype, pitch: int, transposed: bool) -> None:
    def other(tensor: Tensor) -> Tensor:
        if transposed:
            return tensor.T.contiguous().T if tensor.element_size() > 1 else tensor.T.clone().T
        room = torch.empty((tensor.shape[0] + 1, tensor.shape[1] + pitch), dtype=tensor.dtype)
        return room[1:, pitch:].copy_(tensor)

    operands = [other(operand) for operand in case.operands]
    epilogue = {
        name: other(term.expand(1, -1))[0] if name == "bias" else other(term) for name, term in case.epilogue.items()
    }
    out = gemm_reference(*operands, **epilogue, out_dtype=dtype)
    assert torch.equal(out, product(case, dtype)) and out.is_contiguous()
    operands[1], operands[3] = to_mn_major(case.scales_a), to_mn_major(case.scales_b)
    assert torch.equal(gemm_reference(*operands, **epilogue, out_dtype=dtype), out)


@few
@given(case=a_case(), dtype=st.sampled_from(OUTPUTS))
def test_no_rows_give_an_empty_output(case: Case, dtype: torch.dtype) -> None:
    empty = some_rows(case, slice(0, 0))
    out = product(empty, dtype)
    assert out.shape == (0, case.b.shape[0]) and out.dtype == dtype
    assert gemm_magnitude(*empty.operands, **empty.epilogue).shape == out.shape


@few
@given(case=a_case(), sign_of_a=st.sampled_from([-1.0, 1.0]), factor=st.integers(-20, 20))
def test_scales_and_signs_scale_the_product(case: Case, sign_of_a: float, factor: int) -> None:
    """Times a power of two everything is exact, so it may sit in the scales of A, of B, or in C and bias as well."""
    by = sign_of_a * 2.0**factor
    terms = {name: term.to(torch.float32) * by for name, term in case.epilogue.items()}
    expected = product(case, torch.float64) * by
    in_a = gemm_reference(case.a, case.scales_a * by, case.b, case.scales_b, **terms, out_dtype=torch.float64)
    in_b = gemm_reference(case.a, case.scales_a, case.b, case.scales_b * by, **terms, out_dtype=torch.float64)
    assert torch.equal(in_a, expected) and torch.equal(in_b, expected)
