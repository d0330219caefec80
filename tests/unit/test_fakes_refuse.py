"""Fake kernels refuse what the operators themselves refuse, in the same words, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fp8gemm.errors import InputError
from tests.operators import SAMPLES, K, M, N, operator

CPU = torch.device("cpu")
E4M3 = torch.float8_e4m3fn


def arguments_of(sample: str) -> dict[str, Any]:
    args, kwargs = SAMPLES[sample](CPU)
    names = [argument.name for argument in operator(sample)._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def said(sample: str, arguments: dict[str, Any]) -> str:
    """What is wrong with the arguments; nothing if the operator takes them."""
    try:
        operator(sample)(**arguments)
    except InputError as error:
        return str(error)
    return ""


def said_of_fakes(sample: str, arguments: dict[str, Any]) -> str:
    with FakeTensorMode() as mode:
        return said(sample, {k: mode.from_tensor(x) if isinstance(x, Tensor) else x for k, x in arguments.items()})


def no_matter_where(message: str) -> str:
    """Less what depends on addresses, which fakes do not have."""
    return "" if "memory" in message else message


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "one row less": lambda x: x[:-1],
    "no rows": lambda x: x[:0],
    "one column less": lambda x: x[..., :-1],
    "16 columns less": lambda x: x[..., :-16],
    "208 columns": lambda x: x[..., :208],
    "one dimension more": lambda x: x[None],
    "one dimension less": lambda x: x[0],
    "no dimension": lambda x: x.flatten()[0],
    "flat": lambda x: x.flatten(),
    "transposed": lambda x: x.t() if x.dim() == 2 else x.mT if x.dim() > 2 else x,
    "transposed in memory": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "one row for all": lambda x: x[:1].expand_as(x),
    "every other": lambda x: torch.cat([x.float(), x.float()], -1).to(x.dtype)[..., ::2],
    "a pitch of 8 more": lambda x: torch.cat([x.float(), x.float()[..., :8]], -1).to(x.dtype)[..., : x.shape[-1]],
    "with room between groups": lambda x: (
        torch.cat([x.float(), x.float()[:, :1]], 1).to(x.dtype)[:, :-1] if x.dim() == 3 else x
    ),
    "float32": lambda x: x.float(),
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "FP8": lambda x: x.float().to(E4M3),
    "int32": lambda x: x.to(torch.int32),
    "int16": lambda x: x.to(torch.int16),
    "on meta": lambda x: x.to("meta"),
}
TENSORS = [(sample, name) for sample in SAMPLES for name, x in arguments_of(sample).items() if isinstance(x, Tensor)]


def changed(arguments: dict[str, Any], name: str, change: str) -> dict[str, Any] | None:
    """The arguments with one of them changed; None if it cannot be changed so."""
    try:
        return {**arguments, name: CHANGES[change](arguments[name])}
    except (IndexError, RuntimeError):
        return None


def check_agreement(sample: str, arguments: dict[str, Any]) -> None:
    if len({x.device for x in arguments.values() if isinstance(x, Tensor)}) > 1:
        return  # torch refuses these fakes by itself
    found, wanted = said_of_fakes(sample, arguments), no_matter_where(said(sample, arguments))
    assert found == wanted


@pytest.mark.parametrize(("sample", "name"), TENSORS)
def test_one_wrong_operand(sample: str, name: str) -> None:
    arguments = arguments_of(sample)
    for change in CHANGES:
        these = changed(arguments, name, change)
        if these is not None:
            check_agreement(sample, these)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_several_wrong_operands(data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(sorted(SAMPLES)))
    arguments = arguments_of(sample)
    for name in [name for name, x in arguments.items() if isinstance(x, Tensor)]:
        these = changed(arguments, name, data.draw(st.sampled_from(sorted(CHANGES)), label=name))
        arguments = arguments if these is None else these
    check_agreement(sample, arguments)


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "an expected_m of 0": ("gemm_grouped", {"expected_m": 0}, "^expected_m: expected at least 1, got 0"),
    "a masked expected_m of 0": ("gemm_masked", {"expected_m": 0}, "^expected_m: expected at least 1, got 0"),
    "a negative eps": ("quantize_rms_norm", {"eps": -1.0}, "^eps: expected a number of at least 0, got -1"),
    "an eps of NaN": ("quantize_add_rms_norm", {"eps": float("nan")}, "^eps: .* got nan"),
    "no rows of b": ("gemm", {"b": torch.zeros(0, K).to(E4M3), "scales_b": torch.zeros(0, 3)}, "^b: expected N >= 1"),
    "float offsets": ("gemm_k_grouped", {"offsets": torch.zeros(4)}, "^offsets: expected torch.int32"),
    "a K of 208": (
        "gemm_k_grouped",
        {
            "a": torch.zeros(M, 208).to(E4M3),
            "scales_a": torch.ones(M, 2),
            "b": torch.zeros(N, 208).to(E4M3),
            "scales_b": torch.ones(N, 2),
        },
        "^a: .* multiple of 128",
    ),
    "another G": (
        "gemm_k_grouped with c",
        {"offsets": torch.zeros(9, dtype=torch.int32)},
        r"^offsets: expected shape \(4,\) = \(G \+ 1,\)",
    ),
    "no G": ("gemm_k_grouped", {"offsets": torch.zeros(1, dtype=torch.int32)}, r"^offsets: .*1 <= G"),
    "scales in float64": (
        "quantize_activation_out",
        {"scales": torch.zeros(M, 3, dtype=torch.float64)},
        "^scales: expected torch.float32",
    ),
}


@pytest.mark.parametrize(("sample", "wrong", "message"), OTHERS.values(), ids=OTHERS)
def test_what_fakes_once_took(sample: str, wrong: dict[str, Any], message: str) -> None:
    arguments = {**arguments_of(sample), **wrong}
    with pytest.raises(InputError, match=message):
        operator(sample)(**arguments)
    with FakeTensorMode() as mode, pytest.raises(InputError, match=message):
        operator(sample)(**{k: mode.from_tensor(x) if isinstance(x, Tensor) else x for k, x in arguments.items()})
