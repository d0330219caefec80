"""Arguments of every operator of ``torch.ops.fp8gemm``, and torch's own checks of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import fp8gemm
from tests import cases

M, N, K = 5, 136, 272  # tails everywhere, and a pitch of scales that is not M
BF16, FP32 = torch.bfloat16, torch.float32

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _x(device: torch.device, rows: int = M, columns: int = K, seed: int = 0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, device=device).to(BF16)


def _gemm(device: torch.device) -> Arguments:
    return (*cases.signed(M, N, K, seed=1, device=device).operands, None, None, BF16, None, False), {}


def _gemm_with_terms(device: torch.device) -> Arguments:
    case = cases.signed(M, N, K, seed=1, device=device, c=BF16, bias=FP32)
    return (*case.operands, case.c, case.bias, torch.float16, True, True), {}


def _gemm_out(device: torch.device) -> Arguments:
    # NOTE: packed, as what torch's checks compare after a call is a clone.
    return (*_gemm(device)[0][:6], None, False), {"out": torch.zeros(M, N, dtype=FP32, device=device)}


def _quantize_activation_out(device: torch.device) -> Arguments:
    x = _x(device)
    codes, scales = fp8gemm.quantize_activation(x)
    return (x, torch.zeros_like(codes), torch.zeros_like(scales)), {}


def _norm_weight(device: torch.device) -> Tensor:
    return _x(device, seed=2)[0].clone()


SAMPLES: dict[str, Callable[[torch.device], Arguments]] = {
    "gemm": _gemm,
    "gemm with c and bias": _gemm_with_terms,
    "gemm_out": _gemm_out,
    "quantize_activation": lambda device: ((_x(device),), {}),
    "quantize_activation of one row": lambda device: ((_x(device, rows=1),), {}),
    "quantize_activation_out": _quantize_activation_out,
    "quantize_weight": lambda device: ((_x(device, rows=N),), {}),
    "quantize_silu_mul": lambda device: ((_x(device, columns=2 * K),), {}),
    "quantize_rms_norm": lambda device: ((_x(device), _norm_weight(device), 1e-6), {}),
    "quantize_add_rms_norm": lambda device: ((_x(device), _x(device, seed=1), _norm_weight(device), 1e-6), {}),
}
"""The first word is the operator's name."""


def operator(sample: str) -> Any:
    return getattr(torch.ops.fp8gemm, sample.split()[0]).default


def check_operator(sample: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schema, autograd, fake kernel, and the compiled operator with fixed and with symbolic shapes."""
    allclose = torch.allclose

    def allclose_of_codes_too(left: Tensor, right: Tensor, **options: Any) -> bool:
        if left.dtype == right.dtype == torch.float8_e4m3fn:
            left, right = left.float(), right.float()
        return allclose(left, right, **options)

    # torch compares no FP8 tensors.
    monkeypatch.setattr(torch, "allclose", allclose_of_codes_too)
    args, kwargs = SAMPLES[sample](device)
    outcome = opcheck(operator(sample), args, kwargs)
    assert set(outcome.values()) == {"SUCCESS"} and len(outcome) >= 4, outcome
