"""Checks of what a user passes to a GEMM, and the few conversions that are made for them.

Each check raises `InputError` with what was expected and what came, before anything is allocated or launched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.scales import block_count, empty_mn_major
from fp8gemm.tuning.problem import OutputType, StoreKind

_OUTPUT_TYPES = {torch.bfloat16: OutputType.BFLOAT16}
_PLANNED_OUTPUTS = (torch.float16, torch.float32)
_ALIGNMENT = 16  # bytes: TMA's rule for base addresses and row pitches


def output_type(dtype: torch.dtype) -> OutputType:
    """The kernel's name for an output dtype.

    Raises:
        UnsupportedError: the contract has such an output, but no kernel writes it yet.
        InputError: there is no such output.
    """
    found = _OUTPUT_TYPES.get(dtype)
    if found is None:
        message = f"out_dtype: expected one of {', '.join(map(str, _OUTPUT_TYPES))}, got {dtype}"
        raise UnsupportedError(message) if dtype in _PLANNED_OUTPUTS else InputError(message)
    return found


def check_weight(b: Tensor, scales_b: Tensor) -> None:
    """``b`` is (N, K) e4m3 with K contiguous, ``scales_b`` its (ceil(N/128), ceil(K/128)) float32, contiguous."""
    _check_codes("b", b, "(N, K)")
    n, k = b.shape
    if n == 0:
        raise InputError(f"b: expected N >= 1, got shape {tuple(b.shape)}")
    _check_scales("scales_b", scales_b, (block_count(n), block_count(k)), "(ceil(N/128), ceil(K/128))")
    _check_device("scales_b", scales_b, b)
    if not scales_b.is_contiguous():
        raise InputError(f"scales_b: expected contiguous rows, got strides {scales_b.stride()}; pass .contiguous()")


def check_activation(a: Tensor, scales_a: Tensor, b: Tensor) -> None:
    """``a`` is (M, K) e4m3 with K contiguous, ``scales_a`` its (M, ceil(K/128)) float32, both where ``b`` is."""
    _check_codes("a", a, "(M, K)")
    m, k = a.shape
    if k != b.shape[1]:
        raise InputError(f"a: expected K = {b.shape[1]} as in b, got shape {tuple(a.shape)}")
    _check_scales("scales_a", scales_a, (m, block_count(k)), "(M, ceil(K/128))")
    _check_device("a", a, b)
    _check_device("scales_a", scales_a, b)


def check_output(out: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    """``out`` is (M, N) of ``dtype`` where ``b`` is, of any strides that give each element an address of its own."""
    expected = (a.shape[0], b.shape[0])
    if out.shape != expected or out.dtype != dtype:
        raise InputError(f"out: expected {dtype} of shape {expected}, got {out.dtype} of shape {tuple(out.shape)}")
    _check_device("out", out, b)
    _check_no_gradient("out", out)
    (inner_stride, inner), (outer_stride, outer) = sorted(zip(out.stride(), out.shape, strict=True))
    overlaps = (inner > 1 and inner_stride == 0) or (outer > 1 and outer_stride < (inner - 1) * inner_stride + 1)
    if overlaps and out.numel():
        raise InputError(f"out: expected each element at its own address, got strides {out.stride()} for {expected}")
    for name, operand in (("a", a), ("b", b)):
        if _share_memory(out, operand):
            raise InputError(f"out: expected memory of its own, got memory that {name} occupies too")


def store_kind(out: Tensor) -> StoreKind:
    """Whether TMA can write ``out``: rows contiguous, base and row pitch multiples of 16 bytes.

    The stride of a single row means nothing; its length counts instead, so that new outputs of all M agree.
    """
    rows, cols = out.shape
    contiguous = cols == 1 or out.stride(1) == 1
    pitch_bytes = (out.stride(0) if rows > 1 else cols) * out.element_size()
    aligned = pitch_bytes % _ALIGNMENT == 0 and out.data_ptr() % _ALIGNMENT == 0
    return StoreKind.TMA if contiguous and aligned else StoreKind.PREDICATED


def tma_scales(scales_a: Tensor) -> Tensor:
    """``scales_a`` as TMA can read it: rows adjacent, columns on 16-byte boundaries. A copy if it is not so already."""
    m, k_blocks = scales_a.shape
    rows_adjacent = m == 1 or scales_a.stride(0) == 1
    pitched = k_blocks == 1 or (scales_a.stride(1) % 4 == 0 and scales_a.stride(1) >= m)
    if rows_adjacent and pitched and scales_a.data_ptr() % _ALIGNMENT == 0:
        return scales_a
    return empty_mn_major(m, k_blocks, device=scales_a.device).copy_(scales_a)


def _share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether the address ranges of two tensors meet; rows that interleave count too."""
    (x_first, x_last), (y_first, y_last) = _address_range(x), _address_range(y)
    return x_first < y_last and y_first < x_last


def _address_range(x: Tensor) -> tuple[int, int]:
    first = x.data_ptr()
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return first, first + (reach * x.element_size() if x.numel() else 0)


def _check_codes(name: str, codes: Tensor, shape: str) -> None:
    if codes.dtype != torch.float8_e4m3fn or codes.dim() != 2:
        raise InputError(
            f"{name}: expected torch.float8_e4m3fn of shape {shape}, got {codes.dtype} of shape {tuple(codes.shape)}"
        )
    rows, k = codes.shape
    if k < 16 or k % 16:
        raise InputError(f"{name}: expected K to be a multiple of 16 and at least 16, got K = {k}")
    if codes.stride(1) != 1 or (rows > 1 and (codes.stride(0) % _ALIGNMENT or codes.stride(0) < k)):
        raise InputError(
            f"{name}: expected K contiguous and a row pitch that is a multiple of {_ALIGNMENT}, at least K = {k}, "
            f"got strides {codes.stride()}"
        )
    if codes.data_ptr() % _ALIGNMENT and codes.is_cuda:
        raise InputError(
            f"{name}: expected a base address that is a multiple of {_ALIGNMENT} bytes, got one that is "
            f"{codes.data_ptr() % _ALIGNMENT} bytes past; pass .clone()"
        )
    _check_no_gradient(name, codes)


def _check_scales(name: str, scales: Tensor, expected: tuple[int, int], meaning: str) -> None:
    if scales.dtype != torch.float32 or scales.shape != expected:
        raise InputError(
            f"{name}: expected torch.float32 of shape {expected} = {meaning}, got {scales.dtype} of shape "
            f"{tuple(scales.shape)}"
        )
    _check_no_gradient(name, scales)


def _check_device(name: str, tensor: Tensor, b: Tensor) -> None:
    if tensor.device != b.device:
        raise InputError(f"{name}: expected the device of b, {b.device}, got {tensor.device}")


def _check_no_gradient(name: str, tensor: Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InputError(f"{name}: expected a tensor that needs no gradient (inference only), got requires_grad=True")
