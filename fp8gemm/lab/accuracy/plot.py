"""The picture of an accuracy run: error against K, and error by distribution."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fp8gemm.lab.accuracy.products import LABELS, OURS
from fp8gemm.lab.pyplot import load_pyplot

_MARKERS = "osD^vXP*"
_BASELINE = "bf16"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write `path`, a PNG, from `Report.as_json`, so also from a run that is long over. No display is needed."""
    figure = figure_of(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")
    load_pyplot().close(figure)


def figure_of(result: Mapping[str, Any]) -> Any:
    """The picture as a matplotlib figure."""
    pyplot = load_pyplot()
    ticker: Any = importlib.import_module("matplotlib.ticker")
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 12), sharey=True, layout="constrained")
    figure.suptitle(f"Error of products against the unquantised ones: {result['device']}, {result['date']}")
    _against_k(above, [row for row in result["rows"] if row["sweep"] == "k"])
    _by_distribution(below, result)
    for axes in (above, below):
        axes.set_yscale("log")
        axes.set_ylim(1e-3, max(0.055, axes.get_ylim()[1]))
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_tick_params(labelleft=True)
        axes.grid(alpha=0.3, axis="y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    return figure


def _against_k(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Solid lines for our product, dotted ones for bfloat16, one colour per distribution."""
    for marker, distribution in zip(_MARKERS, dict.fromkeys(row["distribution"] for row in rows), strict=False):
        of_one = sorted((row for row in rows if row["distribution"] == distribution), key=lambda row: row["k"])
        ks = [row["k"] for row in of_one]
        ours, baseline = ([row["figures"][name]["relative_rms"] for row in of_one] for name in (OURS, _BASELINE))
        (drawn,) = axes.plot(ks, ours, marker=marker, label=distribution)
        axes.plot(ks, baseline, marker=marker, markersize=3, linestyle=":", linewidth=1, color=drawn.get_color())
    axes.plot([], [], linestyle=":", linewidth=1, color="grey", label="the same in bfloat16")
    axes.set_xscale("log", base=2)
    ticks = sorted({row["k"] for row in rows})
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xlabel("K")
    axes.set_ylabel("relative RMS error")
    at = f" at M = {rows[0]['m']}, N = {rows[0]['n']}" if rows else ""
    axes.set_title(f"FP8, scales 1x128 by 128x128{at}", fontsize="medium")


def _by_distribution(axes: Any, result: Mapping[str, Any]) -> None:
    """One group of bars per distribution, one bar per product."""
    summary, products = result["summary"], result["products"]
    width = 0.8 / len(products)
    for index, product in enumerate(products):
        places = [place + (index - (len(products) - 1) / 2) * width for place in range(len(summary))]
        heights = [by_product[product]["relative_rms"] for by_product in summary.values()]
        axes.bar(places, heights, width, label=LABELS.get(product, product))
    axes.set_xticks(range(len(summary)), [name.replace(" ", "\n").replace("-", "-\n") for name in summary])
    axes.set_xlabel("distribution")
    axes.set_ylabel("relative RMS error, mean over the layers")
    layers = ", ".join(result["layers"])
    axes.set_title(f"M = {result['m']}, N x K = {layers}", fontsize="medium")
