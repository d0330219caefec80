"""A linear layer that is trained: its output and both of its gradients are FP8 products of operands quantised here.

The kernels multiply rows by rows, so each product has its operands quantised along what it sums over:

    y  = x W^T      x 1x128 along K, W 128x128
    dx = dy W       dy 1x128 along N, W^T 128x128: the same codes and scales, transposed
    dW = dy^T x     dy^T and x^T, both 1x128 along M
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from fp8gemm.checks.training import check_linear
from fp8gemm.products.dense import gemm
from fp8gemm.products.operands import contiguous_rows
from fp8gemm.products.quantize import quantize_activation, quantize_weight, quantize_with_transpose


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y = x @ weight.T + bias`` from operands that are not quantised, differentiable: `torch.nn.functional.linear`
    with FP8 products, in the forward and in the backward pass.

    The weight may be in another dtype than ``x``: float32, of which gradients are then float32 too, or bfloat16. Each
    operand is quantised straight from what is given. Of a gradient that nobody asks for nothing is computed, nor kept.
    What is kept for the backward pass are the codes of ``x``, one byte each, and the weight itself, which is quantised
    again there: FSDP may free it in between.

    Under `torch.autocast` ``x`` is cast first, as that of `torch.nn.functional.linear` is, and so the output is of the
    autocast dtype; the weight and the bias stay what they are.

    Args:
        x: (..., K) bfloat16, float16 or float32, any strides. Any leading dimension may be 0.
        weight: (N, K) bfloat16, float16 or float32, where ``x`` is; N and K multiples of 16.
        bias: (N,) bfloat16, float16 or float32, or None. It is added in FP32, as is its gradient.

    Returns:
        (..., N) of x's dtype, contiguous. Gradients are of the dtypes of what they are of, and can not be
        differentiated again.

    Raises:
        InputError: an argument is not as described; nothing was computed.
        UnsupportedDeviceError, CompileError, CacheMissError, DriverError: as `fp8gemm.gemm`; and in the backward pass.
    """
    check_linear(x, weight, bias)
    kind = x.device.type
    # NOTE: not `is_autocast_available`, which the compiler of torch 2.11 does not trace.
    if kind != "meta" and torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))
    rows = x.reshape(-1, x.shape[-1])
    wanted = any(tensor is not None and tensor.requires_grad for tensor in (x, weight, bias))
    # NOTE: nothing else would tell who derives forward that there is no such derivative; the function does.
    if (torch.is_grad_enabled() and wanted) or forward_ad._current_level >= 0:
        out: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        out = _output(_quantized(rows, by_rows=True).by_rows, weight, bias, rows.dtype)
    if x.dim() == 2:
        return out
    # NOTE: no view to autograd, as torch's own layers return none: FSDP warns of one.
    shaped: Tensor = torch.ops.aten._unsafe_view.default(out, (*x.shape[:-1], weight.shape[0]))
    return shaped


class _Both(NamedTuple):
    """A matrix (M, K) as the products read it; what nobody asked for is empty.

    Attributes:
        by_rows: codes (M, K), and scales along K.
        by_columns: codes (K, M), transposed and M made up to whole blocks, and scales along M; empty for M = 0.
    """

    by_rows: tuple[Tensor, ...]
    by_columns: tuple[Tensor, ...]


def _quantized(x: Tensor, *, by_rows: bool = False, by_columns: bool = False) -> _Both:
    """``x`` (M, K) quantised along K, along M, or both.

    NOTE: where only the latter is asked for, the former is made too: the kernel reads ``x`` once, and writes as much;
    to transpose ``x`` ahead of `quantize_activation` would read and write all of it once more.
    """
    if by_columns and x.shape[0]:
        both = quantize_with_transpose(contiguous_rows(x))
        return _Both(both[:2] if by_rows else (), both[2:])
    return _Both(quantize_activation(contiguous_rows(x)) if by_rows else (), ())


def _output(a: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if bias is not None and bias.dtype == torch.float16:
        bias = bias.to(torch.float32)  # which holds it, and which kernels add
    added = None if bias is None else bias.detach().contiguous()
    operands = *a, *quantize_weight(contiguous_rows(weight.detach()))
    return gemm(*operands, bias=added, out_dtype=dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        both = _quantized(x, by_rows=True, by_columns=of_weight)
        ctx.save_for_backward(weight if of_x else None, *both.by_columns)
        ctx.shape_of_weight, ctx.dtype_of_weight = weight.shape, weight.dtype
        ctx.dtype_of_bias = None if bias is None else bias.dtype
        return _output(both.by_rows, weight, bias, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight, of_bias = ctx.needs_input_grad
        weight, *x_by_columns = ctx.saved_tensors
        both = _quantized(dy, by_rows=of_x, by_columns=of_weight)
        dx = dw = dbias = None
        if of_x:
            transposed = (part.t().contiguous() for part in quantize_weight(contiguous_rows(weight)))
            dx = gemm(*both.by_rows, *transposed, out_dtype=dy.dtype)
        if of_weight and not both.by_columns:
            dw = dy.new_zeros(ctx.shape_of_weight, dtype=ctx.dtype_of_weight)
        elif of_weight:
            dw = gemm(*both.by_columns, *x_by_columns, out_dtype=ctx.dtype_of_weight)
        if of_bias:
            dbias = dy.sum(0, dtype=torch.float32).to(ctx.dtype_of_bias)
        return dx, dw, dbias
