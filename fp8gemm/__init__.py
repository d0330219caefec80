"""FP8 matrix products with per-block scales for NVIDIA Hopper GPUs, compiled just in time.

Importing this package touches no GPU, opens no driver and no compiler.
"""

from fp8gemm import nn, ops
from fp8gemm.dense import gemm
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
from fp8gemm.headers import include_dir
from fp8gemm.plans import Plan, plan
from fp8gemm.quantize import (
    quantize_activation,
    quantize_add_rms_norm,
    quantize_rms_norm,
    quantize_silu_mul,
    quantize_weight,
)
from fp8gemm.scales import to_mn_major
from fp8gemm.tuning.select import enumerate_configs, select

__version__ = "0.1.0"

__all__ = [
    "CacheError",
    "CacheMissError",
    "CompileError",
    "DriverError",
    "Fp8GemmError",
    "InputError",
    "Plan",
    "UnsupportedDeviceError",
    "UnsupportedError",
    "enumerate_configs",
    "gemm",
    "include_dir",
    "nn",
    "ops",
    "plan",
    "quantize_activation",
    "quantize_add_rms_norm",
    "quantize_rms_norm",
    "quantize_silu_mul",
    "quantize_weight",
    "select",
    "to_mn_major",
]
