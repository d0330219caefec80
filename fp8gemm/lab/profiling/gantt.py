"""The picture of a timeline: warp roles down, time across; the whole of it, and around the first epilogue."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fp8gemm.lab.profiling.timeline import Timeline
from fp8gemm.lab.profiling.trace import ACTIVITIES, ADD_SHARES, END, Span, roles, summarise
from fp8gemm.lab.pyplot import load_pyplot

COLOURS = {
    "set-up": "#bbbbbb",
    "tile": "#dddddd",
    "wait empty": "#f4b8b0",
    "load": "#4477aa",
    "wait full": "#ee6677",
    "multiply": "#228833",
    "promote": "#ccbb44",
    "add shares": "#ee8866",
    "wait slot": "#cc3311",
    "stage": "#aa3377",
    "wait staged": "#f9dcd7",
    "store": "#66ccee",
}
"""Of each activity: waits are red, tensor work is green."""
_ZOOM_K_BLOCKS = 8
"""Shown before and after the first epilogue."""


def draw(timeline: Timeline, path: Path) -> None:
    """Write `path`, a PNG. No display is needed.

    Raises:
        UnsupportedError: there is no matplotlib.
    """
    figure = figure_of(timeline)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, format="png")
    load_pyplot("--timeline").close(figure)


def figure_of(timeline: Timeline) -> Any:
    """The picture as a matplotlib figure.

    Raises:
        UnsupportedError: there is no matplotlib.
    """
    pyplot = load_pyplot("--timeline")
    patches: Any = importlib.import_module("matplotlib.patches")
    names = roles(timeline.spans)
    figure, axes = pyplot.subplots(2, 1, figsize=(16, 2.4 + 1.1 * len(names)), layout="constrained")
    figure.suptitle(timeline.title())
    zoom = window(timeline.spans)
    for place, (first, last), numbered in ((axes[0], (0, _end(timeline.spans)), False), (axes[1], zoom, True)):
        for row, role in enumerate(names):
            shown = [span for span in timeline.spans if span.role == role and span.end > first and span.start < last]
            _draw_row(place, row, shown, timeline.clock_mhz, numbered=numbered)
        place.set_xlim(first / timeline.clock_mhz, last / timeline.clock_mhz)
        place.set_yticks(range(len(names)), names)
        place.invert_yaxis()
        place.set_xlabel("µs")
    axes[1].set_title("around the first epilogue; numbers are K blocks", fontsize="medium")
    present = {span.activity for span in timeline.spans}
    handles = [patches.Patch(color=COLOURS[name], label=name) for name in ACTIVITIES if name in present - {END}]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def window(spans: Sequence[Span]) -> tuple[int, int]:
    """First and last cycle of what is worth a closer look: the end of the first tile and the beginning of the next."""
    epilogue = [span for span in spans if span.activity in (ADD_SHARES, "stage")]
    end = _end(spans)
    if not epilogue:
        return 0, end
    first = min(epilogue, key=lambda span: span.start)
    last = max(span.end for span in epilogue if span.role == first.role and span.tile == first.tile)
    per_block = max((summary.cycles_per_k_block or 0.0 for summary in summarise(spans)), default=0.0)
    margin = int(_ZOOM_K_BLOCKS * per_block)
    return max(first.start - margin, 0), min(last + margin, end)


def _end(spans: Sequence[Span]) -> int:
    return max((span.end for span in spans), default=1)


def _draw_row(axes: Any, row: int, spans: Sequence[Span], clock_mhz: float, *, numbered: bool) -> None:
    by_activity: dict[str, list[Span]] = {}
    for span in spans:
        by_activity.setdefault(span.activity, []).append(span)
    for activity, of_one in by_activity.items():
        bars = [(span.start / clock_mhz, span.cycles / clock_mhz) for span in of_one]
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=COLOURS[activity], linewidth=0)
        if numbered and activity == "multiply":
            for span in of_one:
                if span.number == 0:  # the first wave of its K block
                    middle = (span.start + span.end) / 2 / clock_mhz
                    axes.text(middle, row, str(span.k_block), ha="center", va="center", fontsize=6, clip_on=True)
