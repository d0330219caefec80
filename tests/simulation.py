"""Kernels' arithmetic in plain PyTorch: what right and wrong kernels would put out, for tests of the gates."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.sizes import SCALE_BLOCK
from tests.cases import Case
from tests.truncation import add_like_a_tensor_core


def simulate_kernel(case: Case, *, out_dtype: torch.dtype = torch.bfloat16, promote: bool = True) -> Tensor:
    """A kernel's arithmetic, 32 of K at a time; without `promote`, all of K stays in the tensor core's accumulators.

    That omission ignores the scales as well, so it takes a case whose scales are all one.
    """
    a, b = case.a.to(torch.float64), case.b.to(torch.float64)
    column_scales = scales_of_columns(case)
    total = torch.zeros(a.shape[0], b.shape[0])
    tensor_core = torch.zeros_like(total, dtype=torch.float64)
    for k in range(0, a.shape[1], 32):
        tensor_core = add_like_a_tensor_core(tensor_core, a[:, None, k : k + 32] * b[None, :, k : k + 32])
        if promote and (k % 128 == 96 or k + 32 >= a.shape[1]):
            scale = torch.outer(case.scales_a[:, k // 128], column_scales[:, k // 128])
            total = (scale.to(torch.float64) * tensor_core + total).to(torch.float32)
            tensor_core.zero_()
    return with_epilogue(total if promote else tensor_core.to(torch.float32), case).to(out_dtype)


def float32_kernel(case: Case, *, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Block sums and their scaled sum in float32: cheaper than `simulate_kernel`, and a little more precise."""
    column_scales = scales_of_columns(case)
    total = torch.zeros(case.a.shape[0], case.b.shape[0])
    for block in range(case.scales_a.shape[1]):
        ks = slice(block * SCALE_BLOCK, block * SCALE_BLOCK + SCALE_BLOCK)
        sums = case.a[:, ks].float() @ case.b[:, ks].float().T
        total.addcmul_(sums, torch.outer(case.scales_a[:, block], column_scales[:, block]))
    return with_epilogue(total, case).to(out_dtype)


def rounded_towards_zero(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 values in a 16-bit type, none larger than it was."""
    nearest = exact.to(dtype)
    too_far = nearest.float().abs() > exact.abs()
    return torch.where(too_far, (nearest.view(torch.int16) - 1).view(dtype), nearest)


def with_epilogue(total: Tensor, case: Case) -> Tensor:
    """float32 `total`, then C, then the bias, each added in float32."""
    for addend in case.epilogue.values():
        total = total + addend.to(torch.float32)
    return total


def scales_of_columns(case: Case) -> Tensor:
    """(N, ceil(K/128)): the scales of each row of B, either scaling."""
    n = case.b.shape[0]
    return case.scales_b if case.scales_b.shape[0] == n else case.scales_b.repeat_interleave(SCALE_BLOCK, dim=0)[:n]
