"""matplotlib, loaded when a picture is drawn and not before, and a mark in each picture of what it was drawn from."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp8gemm.accuracy.plot import require_matplotlib


def load_pyplot() -> Any:
    """``matplotlib.pyplot``, which then needs no display.

    Raises:
        UnsupportedError: it is not installed.
    """
    require_matplotlib()
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def fingerprint(result: Mapping[str, Any]) -> str:
    """The mark of a picture of this result."""
    return f"sha256:{hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()}"


def shows(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether the picture there was drawn from this result, whichever matplotlib drew it."""
    return path.is_file() and fingerprint(result).encode() in path.read_bytes()


def save(figure: Any, path: Path, result: Mapping[str, Any]) -> None:
    """Write a PNG with its mark, and forget the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, format="png", metadata={"Source": fingerprint(result)})
    load_pyplot().close(figure)
