"""FP8 matrix products with per-block scales for NVIDIA Hopper GPUs, compiled just in time.

Importing this package touches no GPU, opens no driver and no compiler, and is quick: it registers the operators
``torch.ops.fp8gemm``, and each public name is imported when it is first asked for.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fp8gemm import nn, ops
    from fp8gemm.ahead.warming import Warmup, warmup
    from fp8gemm.errors import (
        CacheError,
        CacheMissError,
        CompileError,
        DriverError,
        Fp8GemmError,
        InputError,
        UnsupportedDeviceError,
        UnsupportedError,
    )
    from fp8gemm.jit.headers import include_dir
    from fp8gemm.products.dense import gemm
    from fp8gemm.products.folding import Folded, fold_scales
    from fp8gemm.products.grouped import gemm_grouped, gemm_k_grouped, gemm_masked
    from fp8gemm.products.plans import Plan, plan
    from fp8gemm.products.quantize import (
        quantize_activation,
        quantize_add_rms_norm,
        quantize_rms_norm,
        quantize_silu_mul,
        quantize_weight,
        quantize_with_transpose,
    )
    from fp8gemm.products.training import linear
    from fp8gemm.scales import to_mn_major
    from fp8gemm.tuning.grouped import enumerate_grouped_configs
    from fp8gemm.tuning.select import enumerate_configs, select

__version__ = "0.1.0"

__all__ = [
    "CacheError",
    "CacheMissError",
    "CompileError",
    "DriverError",
    "Folded",
    "Fp8GemmError",
    "InputError",
    "Plan",
    "UnsupportedDeviceError",
    "UnsupportedError",
    "Warmup",
    "enumerate_configs",
    "enumerate_grouped_configs",
    "fold_scales",
    "gemm",
    "gemm_grouped",
    "gemm_k_grouped",
    "gemm_masked",
    "include_dir",
    "linear",
    "nn",
    "ops",
    "plan",
    "quantize_activation",
    "quantize_add_rms_norm",
    "quantize_rms_norm",
    "quantize_silu_mul",
    "quantize_weight",
    "quantize_with_transpose",
    "select",
    "to_mn_major",
    "warmup",
]

_NAMES = {
    "fp8gemm.ahead.warming": ("Warmup", "warmup"),
    "fp8gemm.products.dense": ("gemm",),
    "fp8gemm.errors": (
        "CacheError",
        "CacheMissError",
        "CompileError",
        "DriverError",
        "Fp8GemmError",
        "InputError",
        "UnsupportedDeviceError",
        "UnsupportedError",
    ),
    "fp8gemm.products.folding": ("Folded", "fold_scales"),
    "fp8gemm.products.grouped": ("gemm_grouped", "gemm_k_grouped", "gemm_masked"),
    "fp8gemm.jit.headers": ("include_dir",),
    "fp8gemm.products.plans": ("Plan", "plan"),
    "fp8gemm.products.quantize": (
        "quantize_activation",
        "quantize_add_rms_norm",
        "quantize_rms_norm",
        "quantize_silu_mul",
        "quantize_weight",
        "quantize_with_transpose",
    ),
    "fp8gemm.products.training": ("linear",),
    "fp8gemm.scales": ("to_mn_major",),
    "fp8gemm.tuning.grouped": ("enumerate_grouped_configs",),
    "fp8gemm.tuning.select": ("enumerate_configs", "select"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
"""The module of each public name."""

_MODULES = ("errors", "nn", "ops", "parallel", "reference", "routing", "settings")
"""Modules that need no import of their own."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """Whether this process is ``python -m fp8gemm`` or the console script ``fp8gemm``.

    Most of its commands need no tensors, and importing torch would take longer than all that they do.
    """
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # what it is while Python looks for the module, whose name follows in the command line
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m") == __name__
    return os.path.basename(program) in (__name__, f"{__name__}.exe")


if not _is_command():
    # Whoever uses torch.ops.fp8gemm finds the operators there after this import, whether torch came before or after it.
    import fp8gemm.products.operators  # noqa: F401
