"""How well the cost model predicts and chooses, from `scripts/calibrate.py --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fp8gemm.lab.pyplot import load_pyplot
from result_plots import canvas


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Predicted against measured times, and how the regret is distributed."""
    pyplot = load_pyplot()
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 12), layout="constrained")
    figure.suptitle(f"Cost model against measured times: {result['gpu']}, {result['date']}")
    _scatter(above, result["points"], pyplot.get_cmap("turbo"))
    _distribution(below, result["parts"])
    canvas.save(figure, path, result)


def _scatter(axes: Any, points: Mapping[str, Sequence[Sequence[float]]], colours: Any) -> None:
    for index, (tile, pairs) in enumerate(points.items()):
        times, predicted = zip(*pairs, strict=True)
        colour = colours((index + 0.5) / len(points))
        axes.scatter(times, predicted, s=9, alpha=0.6, linewidths=0, color=colour, label=tile)
    measured = [pair[0] for pairs in points.values() for pair in pairs]
    ends = [min(measured), max(measured)]
    for factor, style in ((1.0, "-"), (1.25, ":"), (1 / 1.25, ":")):
        axes.plot(ends, [factor * end for end in ends], style, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("measured, µs")
    axes.set_ylabel("predicted, µs (dotted: off by a factor of 1.25)")
    axes.grid(alpha=0.3)
    axes.set_title("every timing, by tile", fontsize="medium")
    axes.legend(markerscale=2.5, fontsize="small", ncols=1 + len(points) // 12)


def _distribution(axes: Any, parts: Sequence[Mapping[str, Any]]) -> None:
    """One line for the model's choice per part, and a dashed one for the library's where that was judged."""
    for part in parts:
        colour = _steps(axes, part["regret"]["each"], f"fastest predicted, {part['name']} shapes")
        if selected := part.get("selected", {}).get("each"):
            _steps(axes, selected, f"`select`, {part['name']} shapes", color=colour, linestyle="--")
    axes.set_xlabel("regret: time of the choice over the best measured candidate's, less 1, %")
    axes.set_ylabel("share of the shapes with at most that, %")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 101)
    axes.grid(alpha=0.3)
    axes.set_title("regret of the choice", fontsize="medium")
    axes.legend(loc="lower right")


def _steps(axes: Any, regrets: Sequence[float], label: str, **style: Any) -> Any:
    """The empirical distribution; its colour."""
    values = [100 * regret for regret in regrets]
    heights = [100 * (index + 1) / len(values) for index in range(len(values))]
    (line,) = axes.step([0, *values], [0, *heights], where="post", label=label, **style)
    return line.get_color()
