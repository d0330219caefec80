"""Every picture, and the result file that it is drawn from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from result_tables.markdown import RESULTS, Result

from result_plots import (
    accuracy,
    bench,
    calibration,
    grouped,
    linear,
    model,
    small_m,
    sustained_clock,
    timeline,
    training,
)


@dataclass(frozen=True)
class Plot:
    """A picture of one result file.

    Attributes:
        file: the result file, in ``docs/results``; without it there is no picture.
        draw: from its content to a PNG.
    """

    file: str
    draw: Callable[[Result, Path], None]


PLOTS = {
    "docs/plots/bench-h200.png": Plot("bench-h200.json", bench.draw),
    "docs/plots/bench-small-m-h200.png": Plot("bench-small-m-h200.json", small_m.draw),
    "docs/plots/bench-linear-h200.png": Plot("bench-linear-h200.json", linear.draw),
    "docs/plots/bench-grouped-h200.png": Plot("bench-grouped-h200.json", grouped.draw),
    "docs/plots/layers-h200.png": Plot("layers-h200.json", grouped.draw_layers),
    "docs/plots/decoder-h200.png": Plot("decoder-h200.json", linear.draw_decoder),
    "docs/plots/accuracy-h200.png": Plot("accuracy-h200.json", accuracy.draw),
    "docs/plots/model-accuracy-h200.png": Plot("model-accuracy-h200.json", model.draw),
    "docs/plots/calibration-h200.png": Plot("calibration-h200.json", calibration.draw),
    "docs/plots/timeline-h200.png": Plot("timeline-h200.json", timeline.draw),
    "docs/plots/sustained-clock-h100.png": Plot("sustained-clock-h100.json", sustained_clock.draw),
    "docs/plots/training-loss.png": Plot("training-loss-reference.json", training.draw),
}
"""By path from the root."""


def drawable(root: Path) -> Iterator[tuple[str, Path, Result]]:
    """Name, path and result of each plot whose result is there."""
    for name, plot in PLOTS.items():
        file = root / RESULTS / plot.file
        if file.exists():
            yield name, root / name, json.loads(file.read_text())


def draw_plots(root: Path) -> None:
    """Draw every plot whose result is there.

    Raises:
        UnsupportedError: matplotlib is not installed, and there is one to draw.
    """
    for name, path, result in drawable(root):
        PLOTS[name].draw(result, path)
