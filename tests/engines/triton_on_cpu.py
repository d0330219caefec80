"""Triton's interpreter, with what it lacks: counters of loops are tensors, as they are in compiled kernels."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import triton.runtime.interpreter as interpreter
from triton.language import tensor

_patch_lang_core = interpreter._patch_lang_core


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


def extend(*modules: ModuleType) -> None:
    """For the rest of the process: ``tl.range``, and ``range`` in the kernels of some modules."""
    interpreter._patch_lang_core = _patched
    for module in modules:
        module.range = counted_in_tensors  # type: ignore[attr-defined]
