"""Calls that were made before are launched without a check: whatever a check would see makes a call another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.checks import operands
from fp8gemm.errors import InputError
from tests import cases
from tests.calls import same_bits
from tests.cases import Case

BF16, FP32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
M, N, K = 40, 264, 512

Multiply = Callable[..., Tensor]


class Repeated:
    """A product that has been computed twice, so that a third call of its like is launched at once."""

    def __init__(self, of: str, case: Case, out: Tensor) -> None:
        self.operands: dict[str, Tensor] = dict(zip(("a", "scales_a", "b", "scales_b"), case.operands, strict=True))
        self.operands["out"] = out
        self._of = of
        self._plan = fp8gemm.plan(case.b, case.scales_b, max_m=128) if of == "plan" else None
        for _ in range(2):
            self()

    def __call__(self, **changed: Any) -> Tensor:
        arguments = {**self.operands, **changed}
        if self._plan is None:
            return fp8gemm.gemm(**arguments)
        self._plan.b, self._plan.scales_b = arguments.pop("b"), arguments.pop("scales_b")
        return self._plan(**arguments)


@pytest.fixture(params=["gemm", "plan"])
def repeated(request: pytest.FixtureRequest, device: torch.device, seed: int) -> Repeated:
    case = cases.signed(M, N, K, seed=seed, device=device)
    return Repeated(request.param, case, torch.empty(M, N, dtype=BF16, device=device))


@pytest.fixture
def checks(repeated: Repeated, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checks that are made from now on."""
    made: list[str] = []
    check = operands.check_a

    def counted(*arguments: Any) -> None:
        made.append("a")
        check(*arguments)

    monkeypatch.setattr(operands, "check_a", counted)
    return made


def test_the_same_again_is_not_checked_and_reads_what_is_there_now(repeated, checks, device, seed):
    other = cases.signed(M, N, K, seed=seed + 1, device=device)
    for name, values in zip(("a", "scales_a", "b", "scales_b"), other.operands, strict=True):
        repeated.operands[name].copy_(values)
    out = repeated()
    assert checks == [] and out is repeated.operands["out"]
    other.check(out).raise_if_failed(other)


def test_equal_tensors_are_as_good_as_the_same(repeated, checks):
    views = {
        name: tensor.view(tensor.shape) for name, tensor in repeated.operands.items() if name not in ("b", "scales_b")
    }
    assert same_bits(repeated(**views), repeated()) and checks == []


WRONG: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "dtype of a": ("a", lambda t: t.view(torch.float8_e5m2), "a: expected"),
    "dtype of scales": ("scales_a", lambda t: t.view(torch.int32), "scales_a: expected"),
    "shape of a": ("a", lambda t: t[:, : K - 16], "a: expected|scales_a: expected"),
    "strides of a": ("a", lambda t: t.as_strided((M, K), (1, M)), "a: expected"),
    "rows of a": ("a", lambda t: t[: M - 1], "scales_a: expected"),
    "shape of scales": ("scales_a", lambda t: t[:, :3], "scales_a: expected"),
    "shape of out": ("out", lambda t: t[:, : N - 8], "out: expected"),
    "memory of out": ("out", lambda t: t.as_strided((M, N), (0, 1)), "out: expected"),
    "gradient of a scale": ("scales_a", lambda t: t.detach().requires_grad_(), "scales_a: "),
    "gradient of out": ("out", lambda t: t.detach().requires_grad_(), "out: "),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_check_refuses_is_refused_after_right_calls_too(wrong, repeated):
    name, change, message = WRONG[wrong]
    before = repeated().clone()
    with torch.enable_grad(), pytest.raises(InputError, match=message):
        repeated(**{name: change(repeated.operands[name])})
    assert same_bits(repeated(), before)


@pytest.mark.parametrize("repeated", ["gemm"], indirect=True)
def test_so_is_another_dtype_than_that_of_the_output(repeated):
    repeated(out_dtype=BF16)
    with pytest.raises(InputError, match="out: expected torch.float32"):
        repeated(out_dtype=FP32)


def test_an_output_in_an_input_is_refused(repeated, device):
    storage = torch.zeros(M * K + 2 * M * N, dtype=torch.uint8, device=device)
    a = storage[: M * K].view(E4M3).view(M, K)
    a.view(torch.uint8).copy_(repeated.operands["a"].view(torch.uint8))
    apart, inside = (storage[at : at + 2 * M * N].view(BF16).view(M, N) for at in (M * K, 0))
    for _ in range(2):
        repeated(a=a, out=apart)
    with pytest.raises(InputError, match="out: "):
        repeated(a=a, out=inside)


@pytest.mark.parametrize("names", [("b",), ("scales_b",), ("a",), ("scales_a",), ("out",), ("b", "scales_b")], ids=str)
def test_what_lies_elsewhere_is_read_there(names, repeated, checks, device, seed):
    other = cases.signed(M, N, K, seed=seed + 1, device=device)
    values = dict(zip(("a", "scales_a", "b", "scales_b"), other.operands, strict=True))
    values["out"] = torch.empty(M, N, dtype=BF16, device=device)
    moved = {name: values[name] for name in names}
    mixed = {name: moved.get(name, tensor) for name, tensor in repeated.operands.items() if name != "out"}
    out = repeated(**moved)
    assert checks == ["a"], "checked once"
    Case("signed", seed, **mixed).check(out).raise_if_failed(names)
    repeated(**moved)
    assert checks == ["a"]


def test_another_output_dtype_at_the_same_address(repeated, device):
    if repeated._plan is not None:
        with pytest.raises(InputError, match="out: expected"):
            repeated(out=torch.empty(M, N, dtype=FP32, device=device))
        return
    storage = torch.empty(M * N, device=device)
    expected = repeated().float()
    for dtype in (FP32, BF16, FP32, BF16):
        out = repeated(out=storage.view(dtype)[: M * N].view(M, N))
        assert out.dtype == dtype and torch.allclose(out.float(), expected, rtol=2**-7, atol=1e-2 * expected.std())


def test_a_bias_of_another_dtype_at_the_same_address(device, seed):
    case = cases.signed(M, N, K, seed=seed, device=device)
    storage = torch.zeros(N, device=device)
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=M, bias=storage)
    a, scales_a = case.a, case.scales_a
    for dtype in (FP32, BF16, FP32):
        bias = storage.view(dtype)[:N].copy_(torch.linspace(-3, 3, N, device=device))
        plan.bias = bias
        for _ in range(3):
            expected = fp8gemm.gemm(*case.operands, bias=bias.clone())
            assert same_bits(plan(a, scales_a), expected), dtype
            assert same_bits(fp8gemm.gemm(*case.operands, bias=bias), expected), dtype


def test_settings_that_change_are_followed_by_gemm(device, seed):
    case = cases.signed(M, N, K, seed=seed, device=device)
    for _ in range(2):
        expected = fp8gemm.gemm(*case.operands)
    with settings.scope(backend="reference"):
        reference = fp8gemm.gemm(*case.operands)
        assert same_bits(reference, fp8gemm.reference.gemm_reference(*case.operands))
    with settings.scope(num_sms=1), settings.scope(pdl=False):
        case.check(fp8gemm.gemm(*case.operands)).raise_if_failed(case)
    assert same_bits(fp8gemm.gemm(*case.operands), expected)


def test_calls_on_another_stream_are_launched_there(repeated, checks, device):
    expected = repeated().clone()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    out = repeated.operands["out"]
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.cuda._sleep(2_000_000)
            out.zero_()
            found = repeated().clone()
            assert same_bits(found, expected)
    stream.synchronize()
    assert checks == ["a"], "once for the stream"


def test_more_calls_than_are_remembered(repeated, device):
    """Of each a second one later, when its launch is forgotten, and some at once."""
    outs = [torch.empty(M, N, dtype=BF16, device=device) for _ in range(300)]
    expected = repeated().clone()
    for out in (*outs, *outs[:5], *outs[-5:]):
        assert same_bits(repeated(out=out), expected)
