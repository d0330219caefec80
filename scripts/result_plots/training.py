"""The losses of a small model that is trained in three forms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.training_step import figure_of
from result_plots import canvas


def draw(result: Mapping[str, Any], path: Path) -> None:
    """As the example draws it."""
    canvas.save(figure_of(dict(result)), path, result)
