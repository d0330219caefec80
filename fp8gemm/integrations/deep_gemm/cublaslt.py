"""The yardstick of DeepGEMM's tests: a product without scales, by what torch calls."""

from __future__ import annotations

import torch
from torch import Tensor


def cublaslt_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """``D = A @ B.T``, or ``D = C + A @ B.T`` in two kernels.

    Args:
        a: (M, K), float8_e4m3fn on a GPU, or bfloat16.
        b: (N, K), of the same dtype.
        d: (M, N) to write to.
        c: (M, N) to add; it may be ``d``.
    """
    if a.dtype == torch.float8_e4m3fn:
        one = torch.ones((), dtype=torch.float32, device=a.device)
        product = torch._scaled_mm(a, b.mT, one, one, out_dtype=d.dtype, use_fast_accum=True)
    else:
        product = (a @ b.mT).to(d.dtype)
    if c is None:
        d.copy_(product)
    else:
        torch.add(product, c, out=d)
