"""Tensor maps: the 128-byte descriptors from which TMA knows a matrix and the box of it to copy.

A map is written straight to where the kernel's argument block has it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from fp8gemm.driver.api import driver_error, entry_point
from fp8gemm.errors import InputError

MAP_BYTES = 128
MAP_ALIGNMENT = 64

DataType = Literal["uint8", "float16", "bfloat16", "float32"]
Swizzle = Literal["none", "32B", "64B", "128B"]

DATA_TYPES = {"uint8": 0, "float16": 6, "bfloat16": 9, "float32": 7}  # CU_TENSOR_MAP_DATA_TYPE_...
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}  # CU_TENSOR_MAP_SWIZZLE_...
NO_INTERLEAVE = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE
L2_PROMOTIONS = {128: 2, 256: 3}  # CU_TENSOR_MAP_L2_PROMOTION_L2_...B: fetched at least, on a miss
NO_OOB_FILL = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: zeros
_ELEMENT_BYTES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}
_SWIZZLE_BYTES = {"none": None, "32B": 32, "64B": 64, "128B": 128}
_MAX_BOX = 256
_MAX_EXTENT = 2**32
_MAX_STRIDE = 2**40
_PITCH = 16

_Extents = {rank: ctypes.c_uint64 * rank for rank in (2, 3)}
_Pitches = {rank: ctypes.c_uint64 * (rank - 1) for rank in (2, 3)}
_Box = {rank: ctypes.c_uint32 * rank for rank in (2, 3)}


class _Traits(NamedTuple):
    """Everything of a map but its place and size, as the driver wants it; shared by threads and never written."""

    data_type: int
    box: Any
    element_strides: Any
    interleave: int
    swizzle: int
    l2_promotion: int
    out_of_bounds: int


def encode_2d(
    destination: int,
    *,
    address: int,
    dtype: DataType,
    inner: int,
    outer: int,
    outer_stride_bytes: int,
    box_inner: int,
    box_outer: int,
    swizzle: Swizzle = "none",
    fetch_bytes: int = 256,
) -> None:
    """Write the tensor map of a matrix; what a box reads outside the matrix is zero, and is not written by a store.

    Args:
        destination: host address for the 128 bytes, a multiple of 64.
        address: device address of element (0, 0), a multiple of 16.
        dtype: element type; FP8 codes travel as "uint8".
        inner: elements along the contiguous dimension.
        outer: how many rows of those.
        outer_stride_bytes: bytes from one row to the next, a multiple of 16.
        box_inner: elements of a box along the contiguous dimension; a multiple of 16 bytes, within the swizzle's span.
        box_outer: rows of a box.
        swizzle: how 16-byte pieces are permuted in shared memory.
        fetch_bytes: 128 or 256, what L2 fetches at least, aligned to as much, of what it does not hold.

    Raises:
        InputError: an argument breaks one of these rules; nothing was written.
        DriverError: the driver refuses the map all the same.
    """
    traits = _traits(dtype, (box_inner, box_outer), swizzle, fetch_bytes)
    _check_place(destination, address, inner, outer, outer_stride_bytes)
    code = _encode(destination, address, traits, (inner, outer), (outer_stride_bytes,))
    if code:
        matrix = f"{outer} x {inner} {dtype} at {address:#x}, {outer_stride_bytes} bytes a row"
        detail = f"The matrix was {matrix}; the box {box_outer} x {box_inner}, swizzle {swizzle}."
        raise driver_error("cuTensorMapEncodeTiled", code, detail)


def encode_column_blocks(
    destination: int,
    *,
    address: int,
    dtype: DataType,
    columns: int,
    rows: int,
    row_stride_bytes: int,
    block_columns: int,
    box_rows: int,
    box_blocks: int,
    swizzle: Swizzle = "none",
    fetch_bytes: int = 256,
) -> None:
    """Write the tensor map of a matrix seen as blocks of columns, side by side: dimensions (column in the block, row,
    block). One copy then fetches several blocks of some rows, each block in one piece.

    Args and errors are those of `encode_2d`, and ``columns`` must be a multiple of ``block_columns``, which are a
    multiple of 16 bytes.
    """
    traits = _traits(dtype, (block_columns, box_rows, box_blocks), swizzle, fetch_bytes)
    _check_place(destination, address, columns, rows, row_stride_bytes)
    if columns % block_columns:
        raise InputError(f"Tensor map: expected whole blocks of {block_columns} columns, got {columns} columns.")
    block_stride_bytes = block_columns * _ELEMENT_BYTES[dtype]
    extents = (block_columns, rows, columns // block_columns)
    code = _encode(destination, address, traits, extents, (row_stride_bytes, block_stride_bytes))
    if code:
        matrix = f"{rows} x {columns} {dtype} at {address:#x}, {row_stride_bytes} bytes a row"
        detail = f"The matrix was {matrix}; the box {box_blocks} blocks of {box_rows} x {block_columns}, {swizzle}."
        raise driver_error("cuTensorMapEncodeTiled", code, detail)


def _encode(destination: int, address: int, traits: _Traits, extents: tuple[int, ...], pitches: tuple[int, ...]) -> int:
    rank = len(extents)
    code: int = entry_point("cuTensorMapEncodeTiled")(
        ctypes.c_void_p(destination),
        traits.data_type,
        rank,
        ctypes.c_void_p(address),
        _Extents[rank](*extents),
        _Pitches[rank](*pitches),
        traits.box,
        traits.element_strides,
        traits.interleave,
        traits.swizzle,
        traits.l2_promotion,
        traits.out_of_bounds,
    )
    return code


def _check_place(destination: int, address: int, inner: int, outer: int, outer_stride_bytes: int) -> None:
    if (
        destination % MAP_ALIGNMENT
        or address % _PITCH
        or outer_stride_bytes % _PITCH
        or not (address > 0 and 0 < inner <= _MAX_EXTENT and 0 < outer <= _MAX_EXTENT)
        or not 0 < outer_stride_bytes < _MAX_STRIDE
    ):
        raise _place_error(destination, address, inner, outer, outer_stride_bytes)


def replace_address(destination: int, address: int) -> None:
    """Point the tensor map at ``destination`` to another matrix of the same type, size, stride and box.

    Raises:
        InputError: ``destination`` is no multiple of 64, or ``address`` none of 16.
        DriverError: the driver refuses, because there is no valid map at ``destination``.
    """
    if destination % MAP_ALIGNMENT or address % _PITCH or address <= 0:
        raise _place_error(destination, address, 1, 1, _PITCH)
    replace = entry_point("cuTensorMapReplaceAddress")
    code = replace(ctypes.c_void_p(destination), ctypes.c_void_p(address))
    if code:
        raise driver_error("cuTensorMapReplaceAddress", code, f"The new address was {address:#x}.")


@lru_cache(maxsize=1024)
def _traits(dtype: str, box: tuple[int, ...], swizzle: str, fetch_bytes: int) -> _Traits:
    """Check and translate what a kernel's config fixes, once per config."""
    box_inner = box[0]
    choices: tuple[tuple[str, object, Iterable[object]], ...] = (
        ("dtype", dtype, _ELEMENT_BYTES),
        ("swizzle", swizzle, _SWIZZLE_BYTES),
        ("fetch_bytes", fetch_bytes, L2_PROMOTIONS),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise InputError(f"Tensor map {name}: expected one of {', '.join(map(str, allowed))}, got {value!r}.")
    names = ("box_inner", "box_outer") if len(box) == 2 else ("block_columns", "box_rows", "box_blocks")
    for name, extent in zip(names, box, strict=True):
        if not 0 < extent <= _MAX_BOX:
            raise InputError(f"Tensor map {name}: expected 1 to {_MAX_BOX} elements, got {extent}.")
    row_bytes = box_inner * _ELEMENT_BYTES[dtype]
    span = _SWIZZLE_BYTES[swizzle]
    if row_bytes % _PITCH:
        raise InputError(
            f"Tensor map {names[0]}: expected a multiple of {_PITCH} bytes, got {box_inner} elements of {dtype} "
            f"({row_bytes} bytes)."
        )
    if span is not None and row_bytes > span:
        raise InputError(
            f"Tensor map {names[0]}: expected at most the {span} bytes that swizzle {swizzle!r} permutes, got "
            f"{box_inner} elements of {dtype} ({row_bytes} bytes)."
        )
    return _Traits(
        data_type=DATA_TYPES[dtype],
        box=_Box[len(box)](*box),
        element_strides=_Box[len(box)](*(1 for _ in box)),
        interleave=NO_INTERLEAVE,
        swizzle=SWIZZLES[swizzle],
        l2_promotion=L2_PROMOTIONS[fetch_bytes],
        out_of_bounds=NO_OOB_FILL,
    )


def _place_error(destination: int, address: int, inner: int, outer: int, outer_stride_bytes: int) -> InputError:
    rules = (
        (destination % MAP_ALIGNMENT == 0, f"a destination aligned to {MAP_ALIGNMENT} bytes, got {destination:#x}"),
        (address > 0 and address % _PITCH == 0, f"a device address aligned to {_PITCH} bytes, got {address:#x}"),
        (0 < inner <= _MAX_EXTENT, f"1 to 2^32 elements a row, got {inner}"),
        (0 < outer <= _MAX_EXTENT, f"1 to 2^32 rows, got {outer}"),
        (
            0 < outer_stride_bytes < _MAX_STRIDE and outer_stride_bytes % _PITCH == 0,
            f"a row stride of a multiple of {_PITCH} bytes, positive and below 2^40, got {outer_stride_bytes}",
        ),
    )
    return InputError("Tensor map: expected " + "; ".join(text for holds, text in rules if not holds) + ".")
