"""Calls that make their output: what was checked once is launched again, wherever the allocator puts the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.kernels import loaded
from fp8gemm.products import calls, dense, operands, plans, watched
from fp8gemm.products.calls import PLACES, RepeatedCalls
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.hopper import named_chip
from tests import cases
from tests.calls import same_bits

M, N, K = 33, 136, 256
BF16 = torch.bfloat16


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True

    def get_device(self) -> int:
        return 0


class Kernel:
    """Computes the one product that there is; notes what is bound and launched."""

    reads_scales_by_tma = False
    product: Tensor

    def __init__(self, problem: Any, config: Any, **options: Any) -> None:
        self.problem, self.config = problem, config

    def bind(self, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, **others: Any) -> Callable[[], None]:
        NOTES.append("bound")
        out = others["out"]

        def run() -> None:
            NOTES.append("launched")
            out.copy_(self.product[:, : b.shape[0]])

        return run


NOTES: list[str] = []


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """A played GPU, and the outputs that its allocator gives in turn."""
    NOTES.clear()
    outputs = [torch.full((M, N), torch.nan, dtype=BF16)]

    given = {
        "uses_reference": lambda tensor: False,
        "device_chip": lambda index: named_chip("h200"),
        "current_stream": lambda index: 17,
        "current_device": lambda: 0,
        "launch_on": lambda index, bound: bound(),
        "build_many": lambda requests: None,
        "load_kernel": Kernel,
        "_kernels": {},
        "_calls": RepeatedCalls(8),
    }
    for module in (operands, dense, plans, loaded, calls):
        for name, value in given.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(watched, "_PLAIN", {OnGpu, Tensor})
    monkeypatch.setattr(dense, "on_device", lambda index: nullcontext())
    yield outputs


def prepared(of: str, case: cases.Case, monkeypatch: pytest.MonkeyPatch, outputs: list[Tensor]) -> Callable[..., Any]:
    a, scales_a, b, scales_b = case.operands
    Kernel.product = gemm_reference(*case.operands)
    on_gpu = a.as_subclass(OnGpu)
    plan = fp8gemm.plan(b, scales_b, max_m=M) if of == "plan" else None

    def give(shape: Any, *others: Any, **options: Any) -> Tensor:
        assert tuple(shape) == (M, N)
        outputs.append(outputs.pop(0))
        return outputs[-1].fill_(torch.nan)

    for name in ("empty", "empty_strided"):
        monkeypatch.setattr(torch, name, give)
    if plan is not None:
        return lambda **changed: plan(on_gpu, scales_a, **changed)
    return lambda **changed: fp8gemm.gemm(on_gpu, scales_a, b, scales_b, **changed)


@pytest.mark.parametrize("of", ["gemm", "plan"])
def test_the_same_again_into_a_new_output(of: str, allocated: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.signed(M, N, K, seed=1)
    expected = gemm_reference(*case.operands)
    call = prepared(of, case, monkeypatch, allocated)
    for _ in range(3):
        assert same_bits(call(), expected)
    assert ["bound", *["launched"] * 3] == NOTES
    allocated.append(torch.zeros(M, N, dtype=BF16))  # of other tensors the first place may be in use
    for _ in range(4):
        assert same_bits(call(), expected)
    assert NOTES.count("bound") == 2 and NOTES.count("launched") == 7
    given = torch.zeros(M, N, dtype=BF16)
    for _ in range(2):
        assert call(out=given) is given and same_bits(given, expected)
    assert NOTES.count("bound") == 3


@pytest.mark.parametrize("of", ["gemm", "plan"])
def test_more_places_than_are_kept(of: str, allocated: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.signed(M, N, K, seed=1)
    expected = gemm_reference(*case.operands)
    call = prepared(of, case, monkeypatch, allocated)
    allocated += [torch.zeros(M, N, dtype=BF16) for _ in range(PLACES)]
    for _ in range(2 * len(allocated)):
        assert same_bits(call(), expected)
    assert NOTES.count("bound") == NOTES.count("launched") == 2 * (PLACES + 1), "the oldest is forgotten each time"


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]] = {
    "vmap": torch.func.vmap,
    "functionalize": torch.func.functionalize,
    "grad": lambda function: torch.func.grad(lambda x: function(x).sum()),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("of", ["gemm", "plan"])
def test_a_transform_sees_calls_that_were_made_before(
    of: str, transform: str, allocated: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it wraps none of the operands: what it would wrap is the new output."""
    case = cases.signed(M, N, K, seed=1)
    call, out = prepared(of, case, monkeypatch, allocated), torch.zeros(M, N, dtype=BF16)
    for _ in range(2):
        call(), call(out=out)
    before = NOTES.count("launched")
    for owner in (dense, plans.Plan):
        monkeypatch.setattr(owner, "_traced", lambda *terms: NOTES.append("to the operator"))

    def inside(x: Tensor) -> Tensor:
        call(), call(out=out)
        return x * 2

    TRANSFORMS[transform](inside)(torch.zeros(2, 2))
    assert NOTES.count("to the operator") == 2 and NOTES.count("launched") == before


def test_a_plan_whose_weight_has_another_n_at_the_same_place(
    allocated: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases.signed(M, N, K, seed=1)
    a, scales_a, b, scales_b = case.operands
    plan = fp8gemm.plan(b, scales_b, max_m=M)
    Kernel.product = gemm_reference(*case.operands)
    for _ in range(2):
        plan(a.as_subclass(OnGpu), scales_a)
    plan.b, plan.scales_b = b[:128], scales_b[:1]
    made = plan(a.as_subclass(OnGpu), scales_a)
    assert same_bits(made, gemm_reference(a, scales_a, plan.b, plan.scales_b))


class More(OnGpu):
    """More than memory, for all that anybody knows."""


def test_what_operators_were_called_with_is_no_call_that_was_made_before(
    allocated: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases.signed(M, N, K, seed=1)
    a, scales_a, b, scales_b = case.operands
    Kernel.product = gemm_reference(*case.operands)
    out, more = torch.empty(M, N, dtype=BF16), a.as_subclass(More)
    traced: list[str] = []
    real = dense._traced
    monkeypatch.setattr(dense, "_traced", lambda *terms: traced.append("to the operator") or real(*terms))
    monkeypatch.setattr(dense, "_calls_of_operators", RepeatedCalls(8))
    for _ in range(3):
        dense.multiply((more, scales_a, b, scales_b, None, None, out), (BF16, None, False))
    assert ["bound", *["launched"] * 3] == NOTES
    for count in range(1, 4):
        fp8gemm.gemm(more, scales_a, b, scales_b, out=out)
        assert len(traced) == count
