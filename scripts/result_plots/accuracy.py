"""Errors of products by K and by distribution, from `scripts/accuracy.py --json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp8gemm.lab.accuracy.plot import figure_of
from result_plots import canvas


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Above by K, below by distribution."""
    canvas.save(figure_of(result), path, result)
