"""The ways to multiply that are compared. Each takes unquantised operands and gives bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import fp8gemm
from fp8gemm.lab.bench.operands import quantize_whole

Operands = tuple[Tensor, Tensor, Tensor, Tensor]
"""a, scales_a, b, scales_b."""


@dataclass(frozen=True)
class Result:
    """A product.

    Attributes:
        out: (M, N) bfloat16.
        operands: what one of our kernels was given, so that it can be judged; None for other people's.
    """

    out: Tensor
    operands: Operands | None = None


@dataclass(frozen=True)
class Product:
    """A way to multiply.

    Attributes:
        name: short name.
        description: for the report.
        multiply: from x (M, K) and w (N, K), float32 or bfloat16, to about x w^T.
        needs_gpu: whether only a GPU computes it.
    """

    name: str
    description: str
    multiply: Callable[[Tensor, Tensor], Result]
    needs_gpu: bool = False


def _block(x: Tensor, w: Tensor) -> Result:
    return _ours((*fp8gemm.quantize_activation(x), *fp8gemm.quantize_weight(w)))


def _row(x: Tensor, w: Tensor) -> Result:
    return _ours((*fp8gemm.quantize_activation(x), *fp8gemm.quantize_activation(w)))


def _ours(operands: Operands) -> Result:
    return Result(fp8gemm.gemm(*operands), operands)


def _tensor(x: Tensor, w: Tensor, *, fast: bool) -> Result:
    (a, scale_a), (b, scale_b) = (quantize_whole(values, per_row=False) for values in (x, w))
    if x.device.type != "cuda":
        return Result((a.float() @ b.float().t()).mul_(scale_a * scale_b).bfloat16())
    out = torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)
    return Result(out)


def _bf16(x: Tensor, w: Tensor) -> Result:
    return Result(torch.mm(x.bfloat16(), w.bfloat16().t()))


PRODUCTS = (
    Product("block", "fp8gemm, scales 1x128 by 128x128", _block),
    Product("row", "fp8gemm, scales 1x128 by 1x128", _row),
    Product(
        "tensor",
        "FP8 with one scale per tensor, accumulated in FP32 (torch._scaled_mm on a GPU)",
        lambda x, w: _tensor(x, w, fast=False),
    ),
    Product(
        "tensor, fast",
        "torch._scaled_mm, one scale per tensor, fast accumulation: as it is usually served and timed",
        lambda x, w: _tensor(x, w, fast=True),
        needs_gpu=True,
    ),
    Product("bf16", "torch.mm of operands rounded to bfloat16", _bf16),
)
OURS, KERNELS = "block", ("block", "row")

LABELS = {
    "block": "FP8, 1x128 by 128x128",
    "row": "FP8, 1x128 by 1x128",
    "tensor": "FP8, one scale per tensor",
    "tensor, fast": "the same, fast accumulation",
    "bf16": "bfloat16",
}
"""As tables and pictures name them."""


def available_products(device: torch.device) -> list[Product]:
    """Those that this device computes."""
    return [product for product in PRODUCTS if device.type == "cuda" or not product.needs_gpu]
