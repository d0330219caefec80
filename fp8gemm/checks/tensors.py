"""What every operand must be, whatever it is for."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import CODES, INTEGERS, listed
from fp8gemm.errors import InputError
from fp8gemm.sizes import K_STEP, check_depth, check_size, holds

PITCH_BYTES = 16
"""TMA's rule for base addresses and row pitches."""


def check_tensor(name: str, value: object) -> None:
    """``value`` is a dense tensor of torch's."""
    if not isinstance(value, Tensor):
        raise InputError(f"{name}: expected a torch.Tensor, got {described(value)}")
    if value.layout is not torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else f"layout {value.layout}"
        raise InputError(f"{name}: expected a dense tensor, torch.strided, got one of {layout}")


def described(value: object) -> str:
    """What came in place of a tensor."""
    if value is None:
        return "None"
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def check_no_gradient(name: str, tensor: Tensor) -> None:
    """``tensor`` requires no gradient, or gradients are not enabled."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InputError(
            f"{name}: expected a tensor that needs no gradient (inference only), got requires_grad=True; call under "
            f"torch.no_grad() or torch.inference_mode()"
        )


def check_device(name: str, tensor: Tensor, b: Tensor) -> None:
    """``tensor`` is where ``b`` is."""
    if tensor.device != b.device:
        raise InputError(f"{name}: expected the device of b, {b.device}, got {tensor.device}")


def check_codes(name: str, codes: Tensor, shape: str) -> None:
    """``codes`` is a matrix of e4m3, K contiguous, its rows a multiple of 16 bytes apart.

    Args:
        name: what messages begin with.
        codes: checked to be a tensor.
        shape: what messages say, "(M, K)", of which the first letter is that of the rows.
    """
    if codes.dtype != CODES or codes.dim() != 2:
        raise InputError(f"{name}: expected {CODES} of shape {shape}, got {found(codes)}")
    rows, k = codes.shape
    check_depth(name, k)
    pitch = codes.stride(0)
    if codes.stride(1) != 1 or (holds(rows > 1) and (holds(pitch % PITCH_BYTES != 0) or holds(pitch < k))):
        raise InputError(
            f"{name}: expected K contiguous and a row pitch that is a multiple of {PITCH_BYTES}, at least K = {k}, "
            f"got strides {codes.stride()}"
        )
    check_no_gradient(name, codes)


def check_kept(name: str, codes: Tensor) -> None:
    """A layer's ``codes`` are e4m3 still when it is called."""
    if codes.dtype != CODES:
        raise InputError(
            f"{name}: expected {CODES}, got {codes.dtype}; of FP8 layers that are given to fully_shard, "
            f"MixedPrecisionPolicy(param_dtype=...) makes plain numbers: leave param_dtype None for them"
        )


def check_float32(name: str, scales: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    """``scales`` is float32 of ``shape``, of any strides."""
    check_tensor(name, scales)
    if scales.dtype != torch.float32 or scales.shape != shape:
        raise InputError(f"{name}: expected torch.float32 of shape {shape} = {meaning}, got {found(scales)}")
    check_no_gradient(name, scales)


def check_integers(name: str, tensor: Tensor, b: Tensor) -> None:
    """``tensor`` is contiguous int32 or int64 where ``b`` is."""
    check_tensor(name, tensor)
    if tensor.dtype not in INTEGERS:
        raise InputError(f"{name}: expected {listed(INTEGERS)}, got {tensor.dtype}")
    if not tensor.is_contiguous():
        raise InputError(f"{name}: expected contiguous, got strides {tensor.stride()}; pass .contiguous()")
    check_device(name, tensor, b)


def check_elements(name: str, out: Tensor) -> None:
    """Each element of a matrix that is written to has an address of its own."""
    if out.is_contiguous():
        return
    (inner_stride, inner), (outer_stride, outer) = sorted(zip(out.stride(), out.shape, strict=True))
    one_inner = holds(inner > 1) and inner_stride == 0
    if one_inner or (holds(outer > 1) and holds(outer_stride < (inner - 1) * inner_stride + 1)):
        raise InputError(
            f"{name}: expected each element at its own address, got strides {out.stride()} for {tuple(out.shape)}"
        )


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """A number is a whole one from ``least`` on, up to ``most`` if there is an end."""
    expected = f"at least {least}" if most is None else f"{least} to {most}"
    if not isinstance(value, (int, torch.SymInt)):
        raise InputError(f"{name}: expected a whole number, {expected}, got {value!r}")
    if holds(value < least) or (most is not None and holds(value > most)):
        raise InputError(f"{name}: expected {expected}, got {value}")


def check_features(name: str, size: object) -> None:
    """The K of a layer that is to be made; of one that is trained, N too."""
    if not isinstance(size, int) or size < K_STEP or size % K_STEP:
        works = f"; {nearest_features(size)} works" if isinstance(size, int) else ""
        raise InputError(f"{name}: expected a multiple of {K_STEP}, at least {K_STEP}, got {size!r}{works}")
    check_size(name, name, size)


def nearest_features(size: int) -> int:
    """The least number of features, from ``size`` on, that a layer can have."""
    return max(-(-size // K_STEP), 1) * K_STEP


def found(tensor: Tensor) -> str:
    """What came, of another dtype or shape than was expected."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
