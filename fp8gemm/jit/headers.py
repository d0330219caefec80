"""Where the device headers are, in a checkout and in an installed wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fp8gemm.errors import CompileError


@cache
def include_dir() -> Path:
    """The directory against which ``#include "fp8gemm/..."`` resolves: what a compiler takes as ``-I``.

    Raises:
        CompileError: the installation holds no device headers.
    """
    package = Path(__file__).resolve().parents[1]
    # The wheel carries the headers inside the package; in a checkout they lie beside it.
    candidates = (package / "include", package.parent / "include")
    for candidate in candidates:
        if (candidate / "fp8gemm").is_dir():
            return candidate
    raise CompileError(
        f"no device headers: expected a folder fp8gemm in {candidates[0]} (wheel) or {candidates[1]} (checkout); "
        "install fp8gemm again"
    )
