"""Grouped products: how near to one product, how near to reading the weights, and how far ahead of bfloat16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fp8gemm.lab.bench.grouped_cases import CONTIGUOUS, DECODE, LAYER, MASKED
from fp8gemm.lab.bench.grouped_layer import IN_BF16, OURS
from fp8gemm.lab.bench.grouped_operands import FLOOR
from fp8gemm.lab.bench.grouped_peers import BF16, DEEP_GEMM
from fp8gemm.lab.bench.grouped_products import DENSE, IN_MASK, OFFSETS
from fp8gemm.lab.pyplot import load_pyplot
from result_plots import canvas

FEW_ROWS = 64
"""Up to so many rows a group's product is judged by the time that reading its weight takes."""

_Row = Mapping[str, Any]


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Bars for contiguous products and for those of few rows."""
    rows = canvas.shown(result)
    pyplot = load_pyplot()
    figure, (first, second) = pyplot.subplots(2, 1, figsize=(8, 8), layout="constrained")
    contiguous = [row for row in rows if row["part"] == CONTIGUOUS]
    peers = {"one product": (DENSE, OFFSETS), "DeepGEMM": (DEEP_GEMM, OFFSETS), "bfloat16": (BF16, OFFSETS)}
    _bars(first, contiguous, peers, "contiguous: speed relative to")
    few = [row for row in rows if row["part"] in (MASKED, DECODE) and row["m"] <= FEW_ROWS]
    over_floor = {"contiguous": (OFFSETS, FLOOR), "masked": (IN_MASK, FLOOR)}
    _bars(second, few, over_floor, "few rows: time over that of reading the weights")
    figure.suptitle(f"{result['gpu']}, {result['date']}, torch {result['torch']}", fontsize="medium")
    canvas.save(figure, path, result)


def draw_layers(result: Mapping[str, Any], path: Path) -> None:
    """Lines for layers."""
    figure, axes = load_pyplot().subplots(figsize=(8, 4), layout="constrained")
    _layers(axes, [row for row in canvas.shown(result) if row["part"] == LAYER])
    figure.suptitle(f"{result['gpu']}, {result['date']}, torch {result['torch']}", fontsize="medium")
    canvas.save(figure, path, result)


def _bars(axes: Any, rows: Sequence[_Row], ratios: Mapping[str, tuple[str, str]], title: str) -> None:
    """A cluster of bars for each row, a bar for each ratio of times that some row has."""
    timed = {name: pair for name, pair in ratios.items() if any(set(pair) <= row["us"].keys() for row in rows)}
    width = 0.8 / max(len(timed), 1)
    for index, (name, (over, under)) in enumerate(timed.items()):
        bars = [(at, row["us"]) for at, row in enumerate(rows) if {over, under} <= row["us"].keys()]
        places = [at + (index - (len(timed) - 1) / 2) * width for at, _ in bars]
        drawn = axes.bar(places, [us[over] / us[under] for _, us in bars], width, label=name)
        axes.bar_label(drawn, fmt="%.2f", fontsize="x-small")
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_xticks(range(len(rows)), [_name(row) for row in rows], fontsize="x-small")
    axes.set_title(title, fontsize="medium")
    axes.margins(y=0.15)
    if timed:
        axes.legend(loc="upper right", fontsize="small", ncols=len(timed))


def _name(row: _Row) -> str:
    touched = f"{row['touched']} of " if row["touched"] < row["groups"] else ""
    return f"{touched}{row['groups']} x {row['m']}\n{row['n']} x\n{row['k']}"


def _layers(axes: Any, rows: Sequence[_Row]) -> None:
    """A line for each layer."""
    for experts, hidden in dict.fromkeys((row["groups"], row["n"]) for row in rows):
        of_one = [row for row in rows if (row["groups"], row["n"]) == (experts, hidden)]
        timed = [row for row in of_one if {IN_BF16, OURS} <= row["us"].keys()]
        speeds = [row["us"][IN_BF16] / row["us"][OURS] for row in timed]
        label = f"{experts} experts, {hidden} and {of_one[0]['k']} wide"
        axes.plot([row["m"] for row in timed], speeds, marker="o", label=label)
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = sorted({row["m"] for row in rows})
    axes.set_xticks(ticks, [str(m) for m in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_title("Fp8Experts: speed relative to the same layer in bfloat16", fontsize="medium")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3, axis="y")
    if rows:
        axes.legend(loc="lower right", fontsize="small")
