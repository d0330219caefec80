"""fp8gemm as the kernel under that library's own FP8 layers.

Its `FP8Linear` and the eager loop of its `FP8Experts` look up one function, `fp8_linear`, each time they run. That is
the seam: `install_kernel` puts ours there, and what ours declines goes to the function that it replaced.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.driver.device import HOPPER
from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations.transformers.library import fp8_layers
from fp8gemm.products.dense import gemm
from fp8gemm.products.quantize import quantize_activation

DECLINED = (ImportError, NotImplementedError, ValueError)
"""What a kernel raises in that library to say that another shall take the call. Our `UnsupportedError` and `InputError`
are of these types; a failed compilation or launch is not, and reaches the caller."""

BLOCK_SIZE = (128, 128)

_ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_Linear = Callable[..., Tensor]


def block_fp8_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale_inv: Tensor,
    block_size: Sequence[int] | None = None,
    bias: Tensor | None = None,
    activation_scale: Tensor | None = None,
) -> Tensor:
    """``input @ weight.T + bias`` with activations quantised on the fly, one scale per row and 128 columns.

    Arguments are named and ordered as that library does it.

    Args:
        input: (..., K) bfloat16, float16 or float32, on a Hopper GPU or the CPU; K a multiple of 16.
        weight: (N, K) float8_e4m3fn, K contiguous.
        weight_scale_inv: (ceil(N/128), ceil(K/128)) multipliers, float32, bfloat16 or float8_e8m0fnu.
        block_size: that of the weight's scales; only (128, 128) is served, as to fold smaller ones at each call takes
            longer than the product.
        bias: (N,) or None.
        activation_scale: of static quantisation; only None is served.

    Returns:
        (..., N) of the dtype of ``input``.

    Raises:
        UnsupportedError: another block size, static activations, packed FP4, K no multiple of 16, a GPU that is not
            Hopper, or a gradient asked for. It is a NotImplementedError, after which that library tries another kernel.
        InputError: operands that do not fit together. It is a ValueError, likewise.
    """
    reason = _unserved(input, weight, block_size, activation_scale)
    if reason:
        raise UnsupportedError(reason)
    codes, scales = quantize_activation(input.detach().reshape(-1, input.shape[-1]))
    if bias is not None:
        bias = bias.detach().float() if bias.dtype == torch.float16 else bias.detach()
    # The layers' parameters require gradients although nothing ever computes them.
    out = gemm(codes, scales, weight.detach(), weight_scale_inv.detach().float(), bias=bias, out_dtype=input.dtype)
    return out.view(*input.shape[:-1], weight.shape[0])


def install_kernel() -> None:
    """Let every FP8 layer of that library, in models loaded before or after, run on fp8gemm wherever it can.

    What `block_fp8_linear` declines runs as before, and a warning says why, once for each reason. A second call does
    nothing.

    Raises:
        UnsupportedError: transformers is missing, too old, or has no such function any more.
    """
    library = fp8_layers()
    original = getattr(library, "fp8_linear", None)
    if original is None:
        raise UnsupportedError("transformers: expected its FP8 layers to call fp8_linear, found no such function")
    if not _is_ours(original):
        library.fp8_linear = _dispatcher(original)


def uninstall_kernel() -> None:
    """Undo `install_kernel`; without one, do nothing."""
    library = fp8_layers()
    installed: Any = getattr(library, "fp8_linear", None)
    if _is_ours(installed):
        library.fp8_linear = installed.__wrapped__


@contextmanager
def installed_kernel() -> Iterator[None]:
    """`install_kernel` for the length of a block, for all threads. Within an `install_kernel` it changes nothing."""
    already = _is_ours(getattr(fp8_layers(), "fp8_linear", None))
    install_kernel()
    try:
        yield
    finally:
        if not already:
            uninstall_kernel()


def _unserved(input: Tensor, weight: Tensor, block_size: Sequence[int] | None, activation_scale: Tensor | None) -> str:
    """Why the call is for another kernel, empty if it is for this one."""
    if weight.dtype != torch.float8_e4m3fn:
        return f"weight: expected torch.float8_e4m3fn, got {weight.dtype}"
    if block_size is None or tuple(block_size) != BLOCK_SIZE:
        got = block_size if block_size is None else tuple(block_size)
        return f"block_size: expected {BLOCK_SIZE}, got {got}; use_fp8gemm makes such of smaller ones, once"
    if activation_scale is not None:
        return "activation_scale: expected None (activations quantised on the fly), got static quantisation"
    if input.dtype not in _ACTIVATION_DTYPES:
        return f"input: expected one of {', '.join(map(str, _ACTIVATION_DTYPES))}, got {input.dtype}"
    if weight.shape[-1] % 16:
        return f"weight: expected (N, K) with K a multiple of 16, got shape {tuple(weight.shape)}"
    if input.requires_grad and torch.is_grad_enabled():
        return "input: expected no gradient to be needed (inference only), got one that requires it"
    return unserved_device(weight.device)


def unserved_device(device: torch.device) -> str:
    """Why layers on this device cannot run on fp8gemm, empty if they can."""
    if device.type == "cpu" or settings.current().backend == "reference":
        return ""
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability == HOPPER:
            return ""
        found = f"{torch.cuda.get_device_name(device)} of {capability[0]}.{capability[1]}"
    else:
        found = str(device)
    return f"device: expected a Hopper GPU (compute capability 9.0) or the CPU, got {found}"


def _dispatcher(original: _Linear) -> _Linear:
    reasons: set[str] = set()

    @functools.wraps(original)
    def fp8_linear(
        input: Tensor,
        weight: Tensor,
        weight_scale_inv: Tensor,
        block_size: Sequence[int] | None = None,
        bias: Tensor | None = None,
        activation_scale: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        try:
            return block_fp8_linear(input, weight, weight_scale_inv, block_size, bias, activation_scale)
        except DECLINED as error:
            reason = str(error)
        if not torch.compiler.is_compiling() and reason not in reasons:
            reasons.add(reason)
            warnings.warn(
                f"fp8gemm declined an FP8 layer of transformers, whose own kernel runs: {reason}", stacklevel=2
            )
        return original(input, weight, weight_scale_inv, block_size, bias, activation_scale, *rest, **options)

    fp8_linear._fp8gemm = True  # type: ignore[attr-defined]
    return fp8_linear


def _is_ours(function: Any) -> bool:
    return getattr(function, "_fp8gemm", False) is True
