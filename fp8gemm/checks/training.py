"""Checks of what a user passes to a linear layer that is trained: operands that are not quantised yet."""

from __future__ import annotations

import math

from torch import Tensor

from fp8gemm.checks.dtypes import INPUTS, listed
from fp8gemm.checks.tensors import check_tensor, found, nearest_features
from fp8gemm.errors import InputError
from fp8gemm.sizes import K_STEP, check_size


def check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """The arguments of `fp8gemm.linear` fit together, for all of its products.

    Raises:
        InputError: they do not; a size that no product takes is named with one that works.
    """
    check_tensor("weight", weight)
    check_tensor("x", x)
    if weight.dtype not in INPUTS or weight.dim() != 2:
        raise InputError(f"weight: expected {listed(INPUTS)} of shape (N, K), got {found(weight)}")
    for letter, size in zip("NK", weight.shape, strict=True):
        if size < K_STEP or size % K_STEP:
            raise InputError(
                f"weight: expected N and K multiples of {K_STEP}, for gradients sum over N, got shape "
                f"{tuple(weight.shape)}; {letter} = {nearest_features(size)} works"
            )
        check_size("weight", letter, size)
    n, k = weight.shape
    if x.dtype not in INPUTS or x.dim() == 0 or x.shape[-1] != k:
        raise InputError(f"x: expected {listed(INPUTS)} of shape (..., {k}) = (..., K), got {found(x)}")
    check_size("x", "M", math.prod(x.shape[:-1]))
    if bias is not None:
        check_tensor("bias", bias)
        if bias.dtype not in INPUTS or bias.shape != (n,):
            raise InputError(f"bias: expected {listed(INPUTS)} of shape ({n},) = (N,), got {found(bias)}")
    for name, tensor in (("x", x), ("bias", bias)):
        if tensor is not None and tensor.device != weight.device:
            raise InputError(f"{name}: expected the device of weight, {weight.device}, got {tensor.device}")
