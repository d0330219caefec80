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
from tests.grouped import contiguous_case, in_order, k_grouped_case, masked_case

M, N, K = 5, 136, 272  # tails everywhere, and a pitch of scales that is not M
BF16, FP32 = torch.bfloat16, torch.float32

needs_the_pass = pytest.mark.skipif(
    torch.__version__ < "2.7", reason="torch 2.6 drops the option of torch.compile that names a pass"
)

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


def _groups(device: torch.device, columns: int = K) -> Tensor:
    return torch.stack([_x(device, columns=columns, seed=seed) for seed in range(3)])


def _counts(device: torch.device) -> Tensor:
    # NOTE: all of them, because torch's checks compare what is written with what is not.
    return torch.tensor([M, M + 1, 2**30], dtype=torch.int32, device=device)


def _grouped(device: torch.device) -> Arguments:
    """Every row is of some group, because torch's checks compare what is written with what is not."""
    case = contiguous_case([(1, M - 2), (0, 2)], N, K, seed=1, device=device, groups=3)
    return (*case.operands, case.indices(), None, BF16, None, None), {}


def _grouped_by_offsets(device: torch.device) -> Arguments:
    case = contiguous_case(in_order((M - 2, 0, 2)), N, K, seed=1, device=device)
    return (*case.operands, None, case.offsets(torch.int64), torch.float16, 4, True), {}


def _grouped_out(device: torch.device) -> Arguments:
    args, _ = _grouped(device)
    return (*args[:6], None, None), {"out": torch.zeros(M, N, dtype=FP32, device=device)}


def _masked(device: torch.device) -> Arguments:
    case = masked_case((M, M + 1, 2**30), M, N, K, seed=1, device=device)
    return (*case.operands, case.counts(), BF16, 4, None), {}


def _masked_out(device: torch.device) -> Arguments:
    args, _ = _masked(device)
    return (*args[:5], None, True), {"out": torch.zeros(3, M, N, dtype=FP32, device=device)}


def _k_grouped(device: torch.device, *, c: bool = False) -> Arguments:
    case = k_grouped_case((128, 0, 256), M, N, seed=1, device=device, c=c)
    return (*case.operands, case.offsets(), case.c), {}


def _k_grouped_out(device: torch.device) -> Arguments:
    return _k_grouped(device, c=True)[0], {"out": torch.zeros(3, M, N, dtype=FP32, device=device)}


def _norm_weight(device: torch.device) -> Tensor:
    return _x(device, seed=2)[0].clone()


def _ids(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Of three experts from 1 on, and of others."""
    return (torch.arange(2 * M, device=device, dtype=dtype).view(M, 2) * 3) % 5


def _rows(device: torch.device) -> tuple[Tensor, Tensor]:
    """One for each token, so that some of the tokens have all the rows there are; and offsets that keep all."""
    offsets = torch.tensor([0, 2, 2, 2**30], dtype=torch.int32, device=device)
    return torch.arange(M, device=device)[:, None], offsets


def _unpermute(device: torch.device) -> Arguments:
    rows, _ = _rows(device)
    weights = torch.linspace(-1, 2, M, device=device)[:, None]
    return (_x(device, rows=M + 3, columns=N), rows, rows % 3 != 1, weights), {}


SAMPLES: dict[str, Callable[[torch.device], Arguments]] = {
    "gemm": _gemm,
    "gemm with c and bias": _gemm_with_terms,
    "gemm_out": _gemm_out,
    "gemm_grouped": _grouped,
    "gemm_grouped by offsets": _grouped_by_offsets,
    "gemm_grouped_out": _grouped_out,
    "gemm_masked": _masked,
    "gemm_masked_out": _masked_out,
    "gemm_k_grouped": _k_grouped,
    "gemm_k_grouped with c": lambda device: _k_grouped(device, c=True),
    "gemm_k_grouped_out": _k_grouped_out,
    "quantize_activation": lambda device: ((_x(device),), {}),
    "quantize_activation of one row": lambda device: ((_x(device, rows=1),), {}),
    "quantize_activation_out": _quantize_activation_out,
    "quantize_weight": lambda device: ((_x(device, rows=N),), {}),
    "quantize_with_transpose": lambda device: ((_x(device),), {}),
    "quantize_silu_mul": lambda device: ((_x(device, columns=2 * K),), {}),
    "quantize_activation of groups": lambda device: ((_groups(device),), {"counts": _counts(device)}),
    "quantize_silu_mul of groups": lambda device: ((_groups(device, 2 * K),), {"counts": _counts(device).long()}),
    "quantize_rms_norm": lambda device: ((_x(device), _norm_weight(device), 1e-6), {}),
    "quantize_add_rms_norm": lambda device: ((_x(device), _x(device, seed=1), _norm_weight(device), 1e-6), {}),
    "route": lambda device: ((_ids(device, torch.int64), 3, 1), {}),
    "route of int32": lambda device: ((_ids(device, torch.int32), 300, 0), {}),
    # With experts enough for all ids: rows of none hold anything, and another thing each time.
    "quantize_permuted": lambda device: ((_x(device), _ids(device, torch.int64), 300, 0), {}),
    "copy_to_rows": lambda device: ((*fp8gemm.quantize_activation(_x(device)), *_rows(device)), {}),
    "unpermute": _unpermute,
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
