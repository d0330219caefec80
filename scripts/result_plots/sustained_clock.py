"""How the time of a call rings behind idleness, while the power controller looks for its clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from fp8gemm.lab.bench.regimes import SUSTAINED_S
from fp8gemm.lab.pyplot import load_pyplot
from result_plots import canvas

RUN_S = 1.2
"""That one of the two runs at a time."""
COLOURS = {"fp8gemm": "tab:blue", "deepgemm": "tab:red"}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """A picture per shape: every 25 ms over the mean of the last window of whoever ran, and one period of the mean."""
    pyplot = load_pyplot()
    rows = result["rows"]
    figure, places = pyplot.subplots(len(rows), 1, figsize=(8, 2.6 * len(rows)), sharex=True, layout="constrained")
    figure.suptitle(f"Two kernels in turn without a pause, from idleness on: {result['gpu']}, {result['date']}")
    for axes, row in zip(places, rows, strict=True):
        settled = {window["who"]: fmean(window["us"]) for window in row["windows"]}  # the last of each stays
        at = 0.0
        for window in row["windows"]:
            of_call = [us / settled[window["who"]] for us in window["us"]]
            times = [at + RUN_S * (index + 0.5) / len(of_call) for index in range(len(of_call))]
            axes.plot(times, of_call, color=COLOURS[window["who"]])
            at += RUN_S
        axes.axvspan(at - RUN_S - SUSTAINED_S, at - RUN_S, color="0.9")
        axes.set_title(f"{'x'.join(map(str, row['shape']))}, {row['config']}", fontsize="medium")
        axes.set_ylabel("time, settled = 1")
        axes.grid(alpha=0.3)
    for who, colour in COLOURS.items():
        places[0].plot([], [], color=colour, label=who)
    places[0].legend(loc="upper right")
    places[-1].set_xlabel(f"seconds of load; grey: {SUSTAINED_S:g} s, a period, over which a measurement goes")
    canvas.save(figure, path, result)
