"""Render a kernel request to CUDA source: one include, one Config struct, one entry point with a fixed name."""

from __future__ import annotations

import re
from enum import Enum

from fp8gemm.errors import InputError
from fp8gemm.jit.request import ConfigValue, KernelRequest

ENTRY = "fp8gemm_kernel"

# The label becomes a directory name, next to a 64-digit key and a prefix, and file systems stop at 255 bytes.
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HEADER = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_ARCH = re.compile(r"sm_[0-9]+[a-z]?")
_MOST_CTAS = 32
"""Of an SM of the architecture."""

_TEMPLATE = """\
// {label}
#include "{header}"

struct Config {{
{constants}
}};

using Kernel = fp8gemm::{family}<Config>;

extern "C" __global__ void __launch_bounds__(Kernel::kNumThreads, {min_ctas})
{entry}(const __grid_constant__ Kernel::Params params) {{
    Kernel::run(params);
}}
"""


def constant_name(field: str) -> str:
    """The device name of a config field: ``block_m`` becomes ``kBlockM``."""
    return "k" + _pascal(field)


def render_source(request: KernelRequest) -> str:
    """The CUDA source of a request: a pure function of it, the same text on every machine.

    Raises:
        InputError: a name that would not be legal C++ or a legal file name, or a value that has no device type.
    """
    _require("label", request.label, _LABEL)
    _require("header", request.header, _HEADER)
    _require("family", request.family, _IDENTIFIER)
    _require("arch", request.arch, _ARCH)
    if type(request.min_ctas) is not int or not 1 <= request.min_ctas <= _MOST_CTAS:
        raise InputError(f"min_ctas must be an int in [1, {_MOST_CTAS}]; found {request.min_ctas!r} in {request.label}")
    constants: dict[str, str] = {}
    for field, value in request.config:
        _require("config field", field, _FIELD)
        name = constant_name(field)
        if name in constants:
            raise InputError(f"config fields must have distinct device names; found {name} twice in {request.label}")
        constants[name] = _declaration(name, value)
    return _TEMPLATE.format(
        label=request.label,
        header=request.header,
        family=request.family,
        entry=ENTRY,
        min_ctas=request.min_ctas,
        constants="\n".join(f"    {line}" for line in constants.values()),
    )


def _declaration(name: str, value: ConfigValue) -> str:
    # Enum before int, because IntEnum is both; bool before int, because bool is one.
    if isinstance(value, Enum):
        return f"static constexpr auto {name} = fp8gemm::{type(value).__name__}::k{_pascal(value.name)};"
    if isinstance(value, bool):
        return f"static constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int) and 0 <= value < 2**32:
        return f"static constexpr fp8gemm::uint32_t {name} = {value};"
    raise InputError(f"config value {name} must be a bool, an Enum or an int in [0, 2**32); found {value!r}")


def _pascal(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _require(what: str, text: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(text):
        raise InputError(f"{what} must match {pattern.pattern}; found {text!r}")
