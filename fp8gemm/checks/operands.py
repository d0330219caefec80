"""Checks of what a user passes to a single product."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import ADDENDS, listed, output_type
from fp8gemm.checks.tensors import (
    check_codes,
    check_device,
    check_elements,
    check_float32,
    check_no_gradient,
    check_tensor,
    found,
)
from fp8gemm.errors import InputError
from fp8gemm.scales import block_count
from fp8gemm.sizes import check_size
from fp8gemm.tuning.problem import Addend, OutputType, Scaling


class Terms(NamedTuple):
    """The kernel's names for what its operands are."""

    output: OutputType
    scaling: Scaling
    c: Addend
    bias: Addend


def check_product(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype,
) -> Terms:
    """The arguments of `fp8gemm.gemm` fit together."""
    output = output_type(out_dtype)
    scaling = check_b(b, scales_b)
    bias_type = Addend.NONE if bias is None else check_bias(bias, b)
    return Terms(output, scaling, check_call(a, scales_a, b, c, out, out_dtype), bias_type)


def check_call(
    a: Tensor, scales_a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, out_dtype: torch.dtype
) -> Addend:
    """What a call brings fits ``b``, which is checked. Returns the kernel's name for the dtype of C."""
    check_a(a, scales_a, b)
    c_type = Addend.NONE if c is None else check_c(c, a, b)
    if out is not None:
        check_output("out", out, (a.shape[0], b.shape[0]), out_dtype, b)
    return c_type


def check_b(b: Tensor, scales_b: Tensor) -> Scaling:
    """``b`` is (N, K) e4m3 with K contiguous, ``scales_b`` its float32 multipliers; their shape tells the scaling.

    (ceil(N/128), ceil(K/128)), contiguous, means 128x128 blocks; (N, ceil(K/128)), any strides, means 1x128 blocks. The
    two shapes are one at N = 1 and mean the same there: contiguous scales are taken for the former.
    """
    check_tensor("b", b)
    check_codes("b", b, "(N, K)")
    n, k = b.shape
    if n == 0:
        raise InputError(f"b: expected N >= 1, got shape {tuple(b.shape)}")
    check_size("b", "N", n)
    check_tensor("scales_b", scales_b)
    shape, of_blocks, of_rows = scales_b.shape, (block_count(n), block_count(k)), (n, block_count(k))
    if scales_b.dtype != torch.float32 or (shape != of_blocks and shape != of_rows):
        raise InputError(
            f"scales_b: expected torch.float32 of shape {of_blocks} = (ceil(N/128), ceil(K/128)) or {of_rows} = "
            f"(N, ceil(K/128)), got {found(scales_b)}"
        )
    check_no_gradient("scales_b", scales_b)
    check_device("scales_b", scales_b, b)
    if shape == of_blocks and scales_b.is_contiguous():
        return Scaling.BLOCK
    if shape == of_rows:
        return Scaling.ROW
    raise InputError(f"scales_b: expected contiguous rows, got strides {scales_b.stride()}; pass .contiguous()")


def check_a(a: Tensor, scales_a: Tensor, b: Tensor) -> None:
    """``a`` is (M, K) e4m3 with K contiguous, ``scales_a`` its (M, ceil(K/128)) float32, both where ``b`` is."""
    check_tensor("a", a)
    check_codes("a", a, "(M, K)")
    m, k = a.shape
    if k != b.shape[-1]:
        raise InputError(f"a: expected K = {b.shape[-1]} as in b, got shape {tuple(a.shape)}")
    check_size("a", "M", m)
    check_float32("scales_a", scales_a, (m, block_count(k)), "(M, ceil(K/128))")
    check_device("a", a, b)
    check_device("scales_a", scales_a, b)


def check_c(c: Tensor, a: Tensor, b: Tensor) -> Addend:
    """``c`` is (M, N) bfloat16 or float32 where ``b`` is, of any strides. Returns the kernel's name for its dtype."""
    return _check_addend("c", c, (a.shape[0], b.shape[0]), "(M, N)", b)


def check_bias(bias: Tensor, b: Tensor) -> Addend:
    """``bias`` is (N,) bfloat16 or float32 where ``b`` is, contiguous. Returns the kernel's name for its dtype."""
    addend = _check_addend("bias", bias, (b.shape[0],), "(N,)", b)
    if not bias.is_contiguous():
        raise InputError(f"bias: expected stride 1, got stride {bias.stride(0)}; pass .contiguous()")
    return addend


def check_output(name: str, out: Tensor, shape: tuple[int, int], dtype: torch.dtype, b: Tensor) -> None:
    """``out`` is ``shape`` of ``dtype`` where ``b`` is, of any strides that give each element an address of its own."""
    check_tensor(name, out)
    if out.shape != shape or out.dtype != dtype:
        raise InputError(f"{name}: expected {dtype} of shape {shape}, got {found(out)}")
    check_device(name, out, b)
    check_no_gradient(name, out)
    check_elements(name, out)


def _check_addend(name: str, tensor: Tensor, expected: tuple[int, ...], meaning: str, b: Tensor) -> Addend:
    check_tensor(name, tensor)
    addend = ADDENDS.get(tensor.dtype)
    if addend is None or tensor.shape != expected:
        raise InputError(f"{name}: expected {listed(ADDENDS)} of shape {expected} = {meaning}, got {found(tensor)}")
    check_device(name, tensor, b)
    check_no_gradient(name, tensor)
    return addend
