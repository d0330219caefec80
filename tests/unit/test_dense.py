"""`gemm` and `plan` on CPU tensors: the reference behind the public calls, callers' outputs, and every refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.errors import InputError
from fp8gemm.reference import gemm_reference
from fp8gemm.scales import to_mn_major
from tests import cases
from tests.calls import Arguments, Call, Change, arguments_of, assert_refused, both, of, plus, poisoned, same_bits

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
M, N, K = 33, 136, 272  # tails everywhere: two N blocks, three K blocks
SHAPES = [(1, 1, 16), (7, 100, 112), (64, 128, 128), (M, N, K), (129, 257, 144)]


@pytest.fixture
def case() -> cases.Case:
    return cases.signed(M, N, K, seed=cases.fresh_seed())


@pytest.fixture
def expected(case: cases.Case) -> Tensor:
    return gemm_reference(*case.operands)


@both
@pytest.mark.parametrize("maker", [cases.signed, cases.positive, cases.small_integers, cases.distinct_scales])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_cpu_tensors_get_the_right_product(
    call: Call, maker: Callable[..., cases.Case], m: int, n: int, k: int
) -> None:
    case = maker(m, n, k, seed=cases.fresh_seed())
    out = call(*case.operands)
    assert (out.shape, out.dtype, out.device.type, out.is_contiguous()) == ((m, n), BF16, "cpu", True)
    case.check(out).raise_if_failed(case)


@both
def test_either_layout_of_the_activation_scales(call: Call, case: cases.Case, expected: Tensor) -> None:
    for scales_a in (case.scales_a, case.scales_a.contiguous(), to_mn_major(case.scales_a)):
        assert same_bits(call(case.a, scales_a, case.b, case.scales_b), expected), case


def with_pitch(columns_past: int) -> Tensor:
    return poisoned(M + 2, N + 8 + columns_past)[1:-1, 8 : 8 + N]


OUTPUTS = {
    "packed": lambda: poisoned(M, N),
    "pitch that TMA takes": lambda: with_pitch(8),
    "pitch that TMA does not take": lambda: with_pitch(5),
    "column-major": lambda: poisoned(N, M).t(),
    "every other column": lambda: poisoned(M, 2 * N)[:, ::2],
    "odd base": lambda: poisoned(M * N + 1)[1:].view(M, N),
}


@both
@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_of_the_callers_is_filled_and_nothing_beside_it(
    call: Call, make: Callable[[], Tensor], case: cases.Case, expected: Tensor
) -> None:
    out = make()
    assert call(*case.operands, out=out) is out
    assert same_bits(out, expected), case
    out.fill_(math.nan)  # what is not NaN now lies outside
    everything = torch.empty(0, dtype=BF16).set_(out.untyped_storage())
    assert everything.isnan().all()


@both
def test_no_rows(call: Call, case: cases.Case) -> None:
    empty = (case.a[:0], case.scales_a[:0], case.b, case.scales_b)
    assert call(*empty).shape == (0, N)
    out = poisoned(0, N)
    assert call(*empty, out=out) is out


@both
def test_no_rows_are_checked_as_well(call: Call, case: cases.Case) -> None:
    with pytest.raises(InputError, match=r"scales_b: expected .*\(2, 3\).*got.*\(1, 3\)"):
        call(case.a[:0], case.scales_a[:0], case.b, case.scales_b[:1])


def repitched(pitch: int) -> Change:
    return lambda codes: torch.zeros(codes.shape[0], pitch, dtype=E4M3)[:, : codes.shape[1]]


def codes_of(rows: int, columns: int) -> Change:
    return lambda _: torch.zeros(rows, columns, dtype=E4M3)


def rows_of(rows: int) -> Change:
    return lambda _: torch.ones(rows, 3)


# What is passed, and what the message must say: expected, found.
REFUSALS: dict[str, tuple[Arguments, str, str]] = {
    "a of another dtype": (of("a", lambda a: a.float()), "float8_e4m3fn", "torch.float32"),
    "a of the other fp8": (of("a", lambda a: a.float().to(torch.float8_e5m2)), "float8_e4m3fn", "float8_e5m2"),
    "a of three dimensions": (of("a", lambda a: a[None]), "(M, K)", f"(1, {M}, {K})"),
    "a of one dimension": (of("a", lambda a: a[0]), "(M, K)", f"({K},)"),
    "a of another K": (of("a", codes_of(M, K + 16)), f"K = {K}", f"({M}, {K + 16})"),
    "a on another device": (of("a", lambda a: a.to("meta")), "cpu", "meta"),
    "a with K not contiguous": (of("a", lambda a: a.t().contiguous().t()), "K contiguous", f"(1, {M})"),
    "a with an odd pitch": (of("a", repitched(K + 8)), "pitch that is a multiple of 16", f"({K + 8}, 1)"),
    "a with overlapping rows": (of("a", lambda a: a[:1].expand(M, K)), f"at least K = {K}", "(0, 1)"),
    "a that needs a gradient": (of("a", lambda a: a.requires_grad_()), "no gradient", "requires_grad=True"),
    "b of another dtype": (of("b", lambda b: b.to(BF16)), "float8_e4m3fn", "torch.bfloat16"),
    "b of three dimensions": (of("b", lambda b: b[None]), "(N, K)", f"(1, {N}, {K})"),
    "b of no rows": (of("b", lambda b: b[:0]), "N >= 1", f"(0, {K})"),
    "b on another device": (of("b", lambda b: b.to("meta")), "meta", "cpu"),
    "b with K not contiguous": (of("b", lambda b: b.t().contiguous().t()), "K contiguous", f"(1, {N})"),
    "b with an odd pitch": (of("b", repitched(K + 8)), "pitch that is a multiple of 16", f"({K + 8}, 1)"),
    "b that needs a gradient": (of("b", lambda b: b.requires_grad_()), "no gradient", "requires_grad=True"),
    "K no multiple of 16": (of("b", lambda b: b[:, :264]), "K to be a multiple of 16", "got K = 264"),
    "K below 16": (of("b", codes_of(N, 8)), "at least 16", "got K = 8"),
    "K of nothing": (of("b", codes_of(N, 0)), "at least 16", "got K = 0"),
    "scales_a of another dtype": (of("scales_a", lambda s: s.double()), "float32", "float64"),
    "scales_a of another shape": (of("scales_a", lambda s: s[:, :2]), f"({M}, 3)", f"({M}, 2)"),
    "scales_a transposed": (of("scales_a", lambda s: s.t()), f"({M}, 3)", f"(3, {M})"),
    "scales_a on another device": (of("scales_a", lambda s: s.to("meta")), "cpu", "meta"),
    "scales_a that need a gradient": (of("scales_a", lambda s: s.requires_grad_()), "no gradient", "True"),
    "scales_b of another dtype": (of("scales_b", lambda s: s.to(torch.float16)), "float32", "float16"),
    "scales_b of another shape": (
        of("scales_b", lambda s: s[:1]),
        f"(2, 3) = (ceil(N/128), ceil(K/128)) or ({N}, 3)",
        "(1, 3)",
    ),
    "scales_b of too few rows": (of("scales_b", rows_of(N - 1)), f"or ({N}, 3) = (N, ceil(K/128))", f"({N - 1}, 3)"),
    "scales_b not contiguous": (of("scales_b", lambda s: s.t().contiguous().t()), "contiguous", "(1, 2)"),
    "scales_b on another device": (of("scales_b", lambda s: s.to("meta")), "cpu", "meta"),
    "out of another shape": (plus("out", lambda: poisoned(M, N + 1)), f"({M}, {N})", f"({M}, {N + 1})"),
    "out of another dtype": (
        plus("out", lambda: poisoned(M, N, dtype=torch.float16), out_dtype=BF16),
        "torch.bfloat16",
        "torch.float16",
    ),
    "out on another device": (plus("out", lambda: poisoned(M, N).to("meta")), "cpu", "meta"),
    "out that needs a gradient": (
        plus("out", lambda: poisoned(M, N).requires_grad_()),
        "no gradient",
        "requires_grad=True",
    ),
    "out of one row for all": (plus("out", lambda: poisoned(N).expand(M, N)), "each", "(0, 1)"),
    "out with overlapping rows": (
        plus("out", lambda: poisoned(M * N).as_strided((M, N), (N - 1, 1))),
        "each element at its own address",
        f"({N - 1}, 1)",
    ),
    "out in the memory of b": (
        lambda case: {**arguments_of(case), "out": case.b.view(-1)[: 2 * M * N].view(BF16).view(M, N)},
        "memory of its own",
        "b occupies",
    ),
}


@both
@pytest.mark.parametrize(("change", "wanted", "found"), REFUSALS.values(), ids=REFUSALS)
def test_a_bad_operand_is_refused_by_what_was_expected_and_what_came(
    call: Call,
    change: Arguments,
    wanted: str,
    found: str,
    case: cases.Case,
) -> None:
    assert_refused(call, change(case), wanted, found)


def test_gradients_do_not_matter_where_none_are_recorded(case: cases.Case, expected: Tensor) -> None:
    case.scales_b.requires_grad_()
    with torch.no_grad():
        assert same_bits(fp8gemm.gemm(*case.operands), expected)


@both
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, E4M3])
def test_an_output_dtype_outside_the_contract_is_bad_input(call: Call, dtype: torch.dtype, case: cases.Case) -> None:
    wanted = f"expected one of torch.bfloat16, torch.float16, torch.float32, got {dtype}"
    with pytest.raises(InputError, match=wanted):
        call(*case.operands, out_dtype=dtype)
    with pytest.raises(InputError, match=wanted):
        call(*case.operands, out=torch.empty(M, N, dtype=dtype), out_dtype=dtype)


def test_an_output_says_its_dtype_itself(case: cases.Case) -> None:
    for dtype in (torch.float16, torch.float32):
        out = poisoned(M, N, dtype=dtype)
        assert fp8gemm.gemm(*case.operands, out=out) is out
        assert same_bits(out, gemm_reference(*case.operands, out_dtype=dtype)), case
    with pytest.raises(InputError, match="out_dtype: expected one of .*, got torch.int32"):
        fp8gemm.gemm(*case.operands, out=torch.empty(M, N, dtype=torch.int32))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as changed:
        yield changed
    settings.reload()


@both
def test_the_reference_backend_by_environment(
    call: Call, case: cases.Case, expected: Tensor, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("FP8GEMM_BACKEND", "reference")
    assert settings.reload().backend == "reference"
    assert same_bits(call(*case.operands), expected)
    assert fp8gemm.plan(case.b, case.scales_b, max_m=M).kernel_for(M) is None
    environment.setenv("FP8GEMM_BACKEND", "gpu")
    with pytest.raises(InputError, match="FP8GEMM_BACKEND.*auto, reference.*'gpu'"):
        settings.reload()


class Labelled(torch.Tensor):
    """A tensor with a type of its own and nothing else."""


@both
@pytest.mark.parametrize(
    "of_a_type", [lambda t: torch.nn.Parameter(t, requires_grad=False), lambda t: t.as_subclass(Labelled)]
)
def test_tensors_of_other_types_are_multiplied_too(call: Call, of_a_type: Change) -> None:
    case = cases.signed(M, N, K, seed=0)
    a, scales_a, b, scales_b = case.operands
    out = call(of_a_type(a), scales_a, of_a_type(b), scales_b)
    assert same_bits(out.as_subclass(torch.Tensor), fp8gemm.gemm(*case.operands))


def test_a_plan_holds_a_parameter_to_its_rows_too() -> None:
    case = cases.signed(M, N, K, seed=0)
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M - 1)
    with pytest.raises(InputError, match=f"a: expected at most max_m = {M - 1} rows, got {M}"):
        plan(torch.nn.Parameter(case.a, requires_grad=False), case.scales_a)
