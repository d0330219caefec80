"""Triton's interpreter as compiled kernels compute.

Counters of loops are tensors; bfloat16 is added and multiplied as what it stands for and not as its bits; what becomes
bfloat16 or FP8 is rounded to nearest, also up to the next power of two, whose carry the interpreter loses.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton.runtime.interpreter as interpreter
from triton.language import bfloat16, float8e4nv, float32, tensor

_ARITHMETIC = {np.add, np.subtract, np.multiply, np.divide, np.minimum, np.maximum}
_patch_lang_core = interpreter._patch_lang_core
_binary_op = interpreter.InterpreterBuilder.binary_op
_cast_impl = interpreter.InterpreterBuilder.cast_impl
_create_fp_to_fp = interpreter.InterpreterBuilder.create_fp_to_fp
_NARROW = {bfloat16: (torch.bfloat16, torch.uint16), float8e4nv: (torch.float8_e4m3fn, torch.uint8)}


def counted(*bounds: Any, **_: Any) -> Iterable[Any]:
    """``tl.range``."""
    return map(interpreter._implicit_cvt, range(*(each if isinstance(each, int) else _value(each) for each in bounds)))


def counted_in_tensors(*bounds: Any) -> Iterable[Any]:
    """``range``, which counts in tensors where a bound is one."""
    return counted(*bounds) if any(isinstance(each, tensor) for each in bounds) else range(*bounds)


def _value(number: Any) -> int:
    return int(number.handle.data.item() if isinstance(number, tensor) else number.value)


def _patched(lang: Any, scope: Any) -> None:
    _patch_lang_core(lang, scope)
    scope.set_attr(lang, "range", counted)


def _cast(builder: Any, source: Any, target: Any) -> Any:
    narrow, bits = _NARROW.get(target.scalar, (None, None))
    if narrow is None or source.dtype.scalar != float32:
        return _cast_impl(builder, source, target)
    rounded = torch.from_numpy(source.data.copy()).to(narrow).view(bits).numpy()
    return interpreter.TensorHandle(rounded, target.scalar)


def _fp_to_fp(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
    if rounding == interpreter._ir.ROUNDING_MODE.RTNE and source.dtype.scalar == float32 and target.scalar in _NARROW:
        return _cast(builder, source, target)
    return _create_fp_to_fp(builder, source, target, rounding)


def _binary(builder: Any, left: Any, right: Any, operation: Any) -> Any:
    if left.dtype.scalar != bfloat16 or operation not in _ARITHMETIC:
        return _binary_op(builder, left, right, operation)
    wide = _binary_op(builder, *(builder.cast_impl(each, float32) for each in (left, right)), operation)
    return builder.cast_impl(wide, bfloat16)


def extend(*modules: ModuleType) -> None:
    """For the rest of the process; ``range`` counts in tensors in the kernels of some modules."""
    interpreter.InterpreterBuilder.binary_op = _binary
    interpreter.InterpreterBuilder.cast_impl = _cast
    interpreter.InterpreterBuilder.create_fp_to_fp = _fp_to_fp
    interpreter._patch_lang_core = _patched
    for module in modules:
        module.range = counted_in_tensors  # type: ignore[attr-defined]
