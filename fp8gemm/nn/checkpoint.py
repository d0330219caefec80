"""What a checkpoint's tensors must be to become the parameters of a layer, and their exact conversions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fp8gemm.checks.tensors import found
from fp8gemm.errors import InputError
from fp8gemm.scales import E8M0, block_count

WEIGHT, SCALES, BIAS = "weight", "weight_scale_inv", "bias"
"""The parameters' names, as FP8 checkpoints have them."""

_SCALE_DTYPES = tuple(dtype for dtype in (torch.float32, torch.bfloat16, E8M0) if dtype is not None)
_BIAS_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def checked_state(state_dict: Mapping[str, Any], prefix: str, n: int, k: int, *, has_bias: bool) -> dict[str, Any]:
    """``state_dict`` with the tensors of the layer whose keys begin with ``prefix`` checked and converted.

    Raises:
        InputError: a tensor is not what the layer takes, or a weight comes without scales or they without it; the
            message begins with its whole key.
    """
    state = dict(state_dict)
    weight, scales, bias = (prefix + name for name in (WEIGHT, SCALES, BIAS))
    for absent, present in ((weight, scales), (scales, weight)):
        if present in state and absent not in state:
            raise InputError(f"{absent}: expected it beside {present}, got a state dict without it")
    if weight in state:
        state[weight] = checked_weight(weight, state[weight], n, k)
        state[scales] = checked_scales(scales, state[scales], n, k)
    if bias in state and has_bias:
        state[bias] = checked_bias(bias, state[bias], n)
    return state


def checked_weight(name: str, weight: Tensor, n: int, k: int) -> Tensor:
    """``weight`` with K contiguous; it is (n, k) float8_e4m3fn.

    Raises:
        InputError: it is not; the message begins with ``name``.
    """
    if weight.dtype != torch.float8_e4m3fn or tuple(weight.shape) != (n, k):
        hint = "" if not weight.is_floating_point() or weight.element_size() == 1 else "; quantise it first"
        raise InputError(f"{name}: expected torch.float8_e4m3fn of shape {(n, k)} = (N, K), got {found(weight)}{hint}")
    return weight.detach().contiguous()


def checked_scales(name: str, scales: Tensor, n: int, k: int) -> Tensor:
    """``scales`` of an (n, k) weight as contiguous float32; bfloat16 and float8_e8m0fnu ones widen exactly.

    Raises:
        InputError: another dtype or shape; the message begins with ``name``.
    """
    shape = (block_count(n), block_count(k))
    if scales.dtype not in _SCALE_DTYPES or tuple(scales.shape) != shape:
        transposed = shape[0] != shape[1] and tuple(scales.shape) == shape[::-1]
        raise InputError(
            f"{name}: expected {' or '.join(map(str, _SCALE_DTYPES))} of shape {shape} = (ceil(N/128), ceil(K/128)), "
            f"got {found(scales)}{'; it is transposed' if transposed else ''}"
        )
    return scales.detach().to(torch.float32).contiguous()


def checked_bias(name: str, bias: Tensor, n: int) -> Tensor:
    """``bias`` (n,), contiguous: bfloat16 and float32 as they are, float16 widened to float32.

    Raises:
        InputError: another dtype or shape; the message begins with ``name``.
    """
    if bias.dtype not in _BIAS_DTYPES or tuple(bias.shape) != (n,):
        expected = " or ".join(map(str, _BIAS_DTYPES))
        raise InputError(f"{name}: expected {expected} of shape {(n,)} = (N,), got {found(bias)}")
    return bias.detach().to(bias_dtype(bias.dtype)).contiguous()


def bias_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a bias of ``dtype`` is kept in: kernels add bfloat16 and float32, and float16 fits in the latter."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
