"""``matplotlib.pyplot``, for whoever draws; it is asked for before anything is measured for a picture."""

from __future__ import annotations

import importlib
from typing import Any

from fp8gemm.errors import UnsupportedError


def require_matplotlib(option: str = "--plot") -> None:
    """Raises:
    UnsupportedError: it is not installed; the message names the option and the extra that brings it.
    """
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise UnsupportedError(
            f"{option}: expected matplotlib, which is not installed; `pip install 'fp8gemm[plot]'` brings it"
        ) from error


def load_pyplot(option: str = "--plot") -> Any:
    """``matplotlib.pyplot``, which then needs no display.

    Raises:
        UnsupportedError: it is not installed.
    """
    require_matplotlib(option)
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")
