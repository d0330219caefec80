"""Microseconds over few rows, one picture per N x K, from `scripts/bench.py --small-m --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from result_tables.small_m import NAMES

from fp8gemm.lab.bench.peers import OURS, OURS_PDL
from fp8gemm.lab.pyplot import load_pyplot
from result_plots import canvas

COLUMNS = 2
STYLES: Mapping[str, Mapping[str, Any]] = {
    OURS: {"color": "tab:blue", "marker": "."},
    OURS_PDL: {"color": "tab:blue", "marker": "o", "linewidth": 2.5},
    "tensorwise": {"color": "tab:orange", "marker": "."},
    "cublas_block": {"color": "tab:green", "marker": "."},
    "deepgemm": {"color": "tab:red", "marker": "."},
    "deepgemm_pdl": {"color": "tab:red", "marker": "o"},
    "floor": {"color": "black", "linestyle": ":"},
    "floor_pdl": {"color": "black", "linestyle": "--"},
}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """A line per peer in each picture; the names are beside them."""
    rows = sorted(result["rows"], key=lambda row: int(row["m"]))
    layers = sorted({(row["n"], row["k"]) for row in rows}, key=lambda layer: layer[0] * layer[1])
    pyplot = load_pyplot()
    lines = -(-(len(layers) + 1) // COLUMNS)  # one place is for the names
    figure, places = pyplot.subplots(lines, COLUMNS, figsize=(8, 3.6 * lines), layout="constrained", squeeze=False)
    figure.suptitle(f"Few rows: {result['gpu']}, {result['date']}, torch {result['torch']}")
    named: dict[str, Any] = {}
    *pictures, last = places.flat
    for axes, (n, k) in zip(pictures, layers, strict=False):
        named |= _picture(axes, [row for row in rows if (row["n"], row["k"]) == (n, k)])
        axes.set_title(f"N x K = {n} x {k}", fontsize="medium")
    for axes in (*pictures[len(layers) :], last):
        axes.axis("off")
    last.legend(named.values(), named.keys(), loc="center")
    canvas.save(figure, path, result)


def _picture(axes: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Draws one N x K; the lines by name."""
    named = {}
    for peer, style in STYLES.items():
        points = [(row["m"], row["us"][peer]) for row in rows if peer in row["us"]]
        if points:
            (named[NAMES[peer].replace("`", "")],) = axes.plot(*zip(*points, strict=True), **style)
    axes.set_xscale("log", base=2)
    ticks = [row["m"] for row in rows if row["m"] & (row["m"] - 1) == 0]
    axes.set_xticks(ticks, [str(m) for m in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("M")
    axes.set_ylabel("µs")
    axes.grid(alpha=0.3)
    return named
