"""Warp roles of one CTA over time, from `scripts/profile.py --trace`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp8gemm.lab.profiling.gantt import figure_of
from fp8gemm.lab.profiling.timeline import Timeline
from result_plots import canvas


def draw(result: Mapping[str, Any], path: Path) -> None:
    """The whole of it, and around the first epilogue."""
    canvas.save(figure_of(Timeline.from_json(result)), path, result)
