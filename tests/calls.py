"""`gemm` and `plan` called alike, operands by name with one of them changed, and outputs compared bit by bit;
and calls that do not wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from tests.cases import Case

Call = Callable[..., Tensor]
Change = Callable[[Tensor], Tensor]
Arguments = Callable[[Case], dict[str, Any]]
"""From a case to the arguments of a call."""


def call_plan(a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, **arguments: Any) -> Tensor:
    """A plan for the arguments that `gemm` would take, and one call of it."""
    at_the_call = {name: arguments.pop(name, None) for name in ("c", "out")}
    if at_the_call["c"] is not None:
        arguments.setdefault("c_dtype", at_the_call["c"].dtype)
    plan = fp8gemm.plan(b, scales_b, max_m=max(a.shape[0], 1), **arguments)
    return plan(a, scales_a, **at_the_call)


both = pytest.mark.parametrize("call", [fp8gemm.gemm, call_plan], ids=["gemm", "plan"])


@contextmanager
def no_waits() -> Iterator[None]:
    """What waits for the GPU is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor of any layout, in the order of its elements."""
    # NOTE: a clone, because `contiguous` leaves a dimension of one element any stride, which `view` does not take.
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def same_bits(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and torch.equal(bits(left), bits(right))


def picked(codes: Tensor, rows: Tensor) -> Tensor:
    """``codes[rows]``, which torch 2.6 does not do with FP8 on the CPU."""
    return codes.view(torch.uint8)[rows].view(codes.dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype)


def arguments_of(case: Case) -> dict[str, Any]:
    return dict(zip(("a", "scales_a", "b", "scales_b"), case.operands, strict=True)) | case.epilogue


def of(name: str, change: Change) -> Arguments:
    """The arguments of which one is changed."""
    return lambda case: {**arguments_of(case), name: change(arguments_of(case)[name])}


def plus(name: str, make: Callable[[], Any], **others: Any) -> Arguments:
    """The arguments and one more, or several."""
    return lambda case: {**arguments_of(case), name: make(), **others}


def assert_refused(call: Call, arguments: dict[str, Any], wanted: str, found: str) -> None:
    """The call is an error that says what was expected and what came."""
    with pytest.raises(InputError) as caught:
        call(**arguments)
    message = str(caught.value)
    assert "expected" in message and wanted in message and found in message, message
    assert isinstance(caught.value, ValueError)
