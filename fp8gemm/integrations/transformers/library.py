"""Access to the installed transformers, once it is known to be one that this package was tested with."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from fp8gemm.errors import UnsupportedError
from fp8gemm.installed import installed_version

OLDEST = (5, 17)
"""The oldest release that the tests ran with. Before 5.0 its FP8 module could not be imported without Triton."""

_INSTALL = "install it with: pip install 'fp8gemm[transformers]'"


def library_module(name: str) -> Any:
    """The module ``transformers.<name>``.

    Raises:
        UnsupportedError: transformers is missing or older than `OLDEST`.
    """
    needed = ".".join(map(str, OLDEST))
    found = installed_version("transformers")
    if found is None:
        raise UnsupportedError(f"transformers: expected {needed} or newer, got none; {_INSTALL}")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < OLDEST:
        raise UnsupportedError(f"transformers: expected {needed} or newer, got {found}; {_INSTALL}")
    return import_module(f"transformers.{name}")


def fp8_layers() -> Any:
    """The module that defines `FP8Linear` and the function `fp8_linear` that it calls."""
    return library_module("integrations.finegrained_fp8")
