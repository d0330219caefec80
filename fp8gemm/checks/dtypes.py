"""Element types: what each operand may have, and the kernels' names for them."""

from __future__ import annotations

from collections.abc import Collection

import torch

from fp8gemm.errors import InputError
from fp8gemm.quoting import quoted
from fp8gemm.tuning.problem import Addend, InputType, OutputType

CODES = torch.float8_e4m3fn
"""What products multiply."""
OUTPUTS = {
    torch.bfloat16: OutputType.BFLOAT16,
    torch.float16: OutputType.FLOAT16,
    torch.float32: OutputType.FLOAT32,
}
"""What products make."""
ADDENDS = {torch.bfloat16: Addend.BFLOAT16, torch.float32: Addend.FLOAT32}
"""C and the bias."""
INPUTS = {
    torch.bfloat16: InputType.BFLOAT16,
    torch.float16: InputType.FLOAT16,
    torch.float32: InputType.FLOAT32,
}
"""What quantisers read."""
_NAMED = {f"{prefix}{str(dtype).removeprefix('torch.')}": dtype for dtype in OUTPUTS for prefix in ("", "torch.")}
"""What an argument that is a dtype may be called instead."""
INTEGERS = (torch.int32, torch.int64)
"""Indices, offsets and counts."""


def listed(dtypes: Collection[torch.dtype], joint: str = " or ") -> str:
    """Dtypes as messages have them."""
    return joint.join(map(str, dtypes))


def dtype_of(name: str, dtype: object, dtypes: Collection[torch.dtype]) -> torch.dtype:
    """The one of ``dtypes`` that an argument is, or names, as ``bfloat16`` or ``torch.bfloat16``.

    Raises:
        InputError: it is another one, or anything else.
    """
    found = _NAMED.get(dtype, dtype) if isinstance(dtype, str) else dtype
    check_dtype(name, found, dtypes)
    assert isinstance(found, torch.dtype)
    return found


def output_type(dtype: torch.dtype) -> OutputType:
    """The kernel's name for an output dtype.

    Raises:
        InputError: there is no such output.
    """
    check_dtype("out_dtype", dtype, OUTPUTS)
    return OUTPUTS[dtype]


def addend(name: str, dtype: torch.dtype | None) -> Addend:
    """The kernel's name for the dtype of C or of the bias; None where there is no such term.

    Raises:
        InputError: no kernel adds a term of that dtype; ``name`` is what it was passed as.
    """
    if dtype is None:
        return Addend.NONE
    check_dtype(name, dtype, ADDENDS)
    return ADDENDS[dtype]


def check_dtype(name: str, dtype: object, dtypes: Collection[torch.dtype]) -> None:
    """An argument that is a dtype is one of ``dtypes``.

    Raises:
        InputError: it is another one, or anything else.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in dtypes:
        found = str(dtype) if isinstance(dtype, torch.dtype) else f"{quoted(dtype)}, no torch.dtype nor its name"
        raise InputError(f"{name}: expected one of {listed(dtypes, ', ')}, got {found}")
