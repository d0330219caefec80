"""A mark in each picture of what it was drawn from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp8gemm.lab.pyplot import load_pyplot


def fingerprint(result: Mapping[str, Any]) -> str:
    """The mark of a picture of this result."""
    return f"sha256:{hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()}"


def shows(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether the picture there was drawn from this result, whichever matplotlib drew it."""
    return path.is_file() and fingerprint(result).encode() in path.read_bytes()


def shown(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows to draw: where peers were measured alone, those of sustained load."""
    return [row for row in result["rows"] if row.get("regime") != "burst"]


def save(figure: Any, path: Path, result: Mapping[str, Any]) -> None:
    """Write a PNG with its mark, and forget the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png", metadata={"Source": fingerprint(result)})
    load_pyplot().close(figure)
