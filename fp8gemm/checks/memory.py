"""Checks of where operands lie, which have addresses where a product is computed and not where it is traced."""

from __future__ import annotations

from torch import Tensor

from fp8gemm.checks.dtypes import CODES
from fp8gemm.checks.tensors import PITCH_BYTES
from fp8gemm.errors import InputError


def check_addresses(**operands: Tensor | None) -> None:
    """Operands on a GPU lie where kernels can read and write them."""
    for name, tensor in operands.items():
        if tensor is not None and tensor.is_cuda:
            _check_address(name, tensor)


def check_memory(out: Tensor, c: Tensor | None, **inputs: Tensor | None) -> None:
    """``out`` shares memory with none of ``inputs``, nor with ``c`` unless the two are one, element by element.

    What counts is the range of addresses from the first element to the last: rows that interleave share memory too.
    """
    if out.is_meta:
        return
    first, end = _address_range(out)
    if first == end:
        return
    if c is not None and not _is_same(out, c):
        inputs["c"] = c
    for name, operand in inputs.items():
        if operand is not None:
            operand_first, operand_end = _address_range(operand)
            if first < operand_end and operand_first < end:
                raise InputError(f"out: expected memory of its own, got memory that {name} occupies too")


def _check_address(name: str, tensor: Tensor) -> None:
    address, size = tensor.data_ptr(), tensor.element_size()
    if not address and tensor.numel():
        raise InputError(f"{name}: expected a tensor with memory of its own, got one without")
    if tensor.is_neg():
        raise InputError(f"{name}: expected memory that holds its values, got their negatives; pass .resolve_neg()")
    if tensor.dtype == CODES and address % PITCH_BYTES:
        raise InputError(
            f"{name}: expected a base address that is a multiple of {PITCH_BYTES} bytes, got one that is "
            f"{address % PITCH_BYTES} bytes past; pass .clone()"
        )
    if address % size:
        # No operation of torch makes such a tensor, but memory that others have laid out can be wrapped into one.
        raise InputError(
            f"{name}: expected an address that is a multiple of its elements' {size} bytes, got {address:#x}"
        )


def _is_same(x: Tensor, y: Tensor) -> bool:
    """Whether element for element two tensors are one."""
    return x is y or (
        x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype
    )


def _address_range(x: Tensor) -> tuple[int, int]:
    first = x.data_ptr()
    if x.is_contiguous():
        return first, first + x.numel() * x.element_size()
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return first, first + (reach * x.element_size() if x.numel() else 0)
