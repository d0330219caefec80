"""What a checkpoint's tensors must be to become the parameters of a layer, and their exact conversions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fp8gemm.checks.tensors import found
from fp8gemm.errors import InputError
from fp8gemm.products.folding import SCALE_DTYPES, Names, fold_named
from fp8gemm.scales import OF_WEIGHTS, Blocks, block_count, weight_blocks

WEIGHT, SCALES, BIAS = "weight", "weight_scale_inv", "bias"
"""The parameters' names, as FP8 checkpoints have them."""

_SMALL = Blocks(32, 32)
"""Of checkpoints whose scales are folded when a state dict has them."""
_BIAS_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Stored(NamedTuple):
    """How the scales of weights came.

    Attributes:
        blocks: what each is for; None where their shape says: 128x128, or 32x32 if there are so many.
        requantize: as in `fp8gemm.fold_scales`.
    """

    blocks: Blocks | None = None
    requantize: bool = False

    @classmethod
    def of(cls, block_size: Sequence[int], requantize: bool) -> Stored:
        """From arguments of these names.

        Raises:
            InputError: no scales of 128x128 blocks can be made of those.
        """
        return cls(weight_blocks("block_size", block_size), requantize)

    def blocks_of(self, scales: Tensor, n: int, k: int) -> Blocks:
        """Those of ``scales`` (..., rows, columns) of an (n, k) weight, whether these fit or not."""
        if self.blocks is not None:
            return self.blocks
        # NOTE: the counts of 32x32 and of 128x128 are the same where one block of either covers all, and mean the same.
        is_small = tuple(scales.shape[-2:]) == _SMALL.counts(n, k) != OF_WEIGHTS.counts(n, k)
        return _SMALL if is_small else OF_WEIGHTS


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
        names = Names(weight, scales)
        state[weight], state[scales] = checked_operands(names, state[weight], state[scales], n, k, Stored())
    if bias in state and has_bias:
        state[bias] = checked_bias(bias, state[bias], n)
    return state


def checked_operands(
    names: Names, weight: Tensor, scales: Tensor, n: int, k: int, stored: Stored
) -> tuple[Tensor, Tensor]:
    """An (n, k) weight and float32 scales for its 128x128 blocks, of those or of others that are folded.

    Raises:
        InputError: as `checked_weight`, `checked_scales` and `fp8gemm.fold_scales`; the message begins with a name.
    """
    weight = checked_weight(names.codes, weight, n, k)
    blocks = stored.blocks_of(scales, n, k)
    if blocks == OF_WEIGHTS:
        return weight, checked_scales(names.scales, scales, n, k)
    folded = fold_named(weight, scales, blocks, stored.requantize, names)
    return folded.codes, folded.scales


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
    if scales.dtype not in SCALE_DTYPES or tuple(scales.shape) != shape:
        transposed = shape[0] != shape[1] and tuple(scales.shape) == shape[::-1]
        raise InputError(
            f"{name}: expected {' or '.join(map(str, SCALE_DTYPES))} of shape {shape} = (ceil(N/128), ceil(K/128)), "
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
