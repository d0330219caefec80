"""The plots of a page, as SVG: a roofline, and what share of a step each layer has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from fp8gemm.lab.report.data import Report, Step
from fp8gemm.lab.report.html import node, titled
from fp8gemm.lab.report.layers import Point
from fp8gemm.lab.report.style import colour
from fp8gemm.lab.report.words import TIMES, digits, share_text, time_text

WIDE, NARROW = 1080, 362
"""Widths that plots are drawn for, of which a page shows the one that fits."""

_LETTER = 6.4
"""Width of a letter, at most on average."""


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis: values from ``low`` to ``high`` at ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, most: int) -> list[float]:
        """Round values, no more than so many: of each power of ten 1, 2 and 5, or 1, or fewer still."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
            found = [step * 10.0**power for power in powers if power % every == 0 for step in steps]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= most:
                break
        return found


def describe(point: Point) -> str:
    """A point in words, a line each."""
    lines = [
        f"{point.layer.name}, M = {point.m}",
        f"{point.config.label}, from the {point.explanation.source}",
        f"predicted {time_text(point.us)}, {digits(point.tflops(point.us))} TFLOPS",
    ]
    if point.burst_us is not None:
        lines.append(f"in bursts {time_text(point.burst_us)}")
    if point.measured_us is not None:
        lines.append(f"measured {time_text(point.measured_us)}, {digits(point.tflops(point.measured_us))} TFLOPS")
    return "\n".join([*lines, f"at best {time_text(point.bound_us)}"])


def roofline(report: Report, width: int) -> Element:
    """Speed over operations per byte, both logarithmic, under the roof of memory and tensor cores.

    A dot is a measured time, or a predicted one where nothing was measured; a ring is what was predicted for a dot.
    """
    height = 460 if width == WIDE else 380
    points = [point for step in report.steps for point in step.points]
    tensor, dram = (float(points[0].facts[name]) for name in ("tensor_rate", "dram_rate"))
    across = [float(point.facts["intensity"]) for point in points]
    up = [point.tflops(us) for point in points for us in _times_of(point)]
    x = Scale(min(across) / 1.6, max(*across, 1.6 * tensor / dram) * 1.3, 46.0, width - 12.0)
    y = Scale(min(up) / 2.4, tensor * 1.7, height - 40.0, 10.0)
    return node(
        "svg",
        *_axes(x, y, width),
        *_roof(x, y, tensor, dram),
        *(part for index, layer in enumerate(report.layers) for part in _way(report.points(layer), index, x, y)),
        *_rows(report, x, y),
        viewBox=f"0 0 {width} {height}",
        class_=f"plot {'wide' if width == WIDE else 'narrow'}",
        role="img",
        aria_label="Roofline: TFLOPS over FLOP per byte. The table below has the same figures.",
    )


def _axes(x: Scale, y: Scale, width: int) -> Iterator[Element]:
    bottom, left = y.start, x.start
    for value in x.ticks(width // 60):
        at = x(value)
        yield node("line", x1=at, x2=at, y1=y.end, y2=bottom, class_="grid")
        yield node("text", f"{value:,.4g}", x=at, y=bottom + 15, text_anchor="middle", class_="small dim")
    for value in y.ticks(12):
        at = y(value)
        yield node("line", x1=left, x2=x.end, y1=at, y2=at, class_="grid")
        yield node("text", f"{value:,.4g}", x=left - 5, y=at + 4, text_anchor="end", class_="small dim")
    yield node("line", x1=left, x2=x.end, y1=bottom, y2=bottom, class_="axis")
    yield node("line", x1=left, x2=left, y1=y.end, y2=bottom, class_="axis")
    yield node("text", "FLOP per byte", x=x.end, y=bottom + 32, text_anchor="end", class_="dim")
    yield node("text", "TFLOPS", x=left + 6, y=y.end + 12, class_="dim")


def _roof(x: Scale, y: Scale, tensor: float, dram: float) -> Iterator[Element]:
    ridge = tensor / dram
    # TB/s times FLOP per byte are TFLOPS; the slope begins where it enters the plot.
    first = max(x.low, y.low / dram)
    corners = ((first, first * dram), (ridge, tensor), (x.high, tensor))
    yield node("polyline", points=" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners), class_="roof")
    yield node("text", f"{digits(tensor)} TFLOPS", x=x.end, y=y(tensor) - 7, text_anchor="end", class_="small over")
    middle = math.sqrt(first * ridge)
    angle = math.degrees(math.atan2(y(tensor) - y(first * dram), x(ridge) - x(first)))
    at = f"translate({x(middle):.1f} {y(middle * dram) - 8:.1f}) rotate({angle:.1f})"
    yield node("text", f"{dram:.3g} TB/s", transform=at, text_anchor="middle", class_="small over")


def _way(points: Sequence[Point], index: int, x: Scale, y: Scale) -> Iterator[Element]:
    """A layer's points, with a line from fewer to more rows."""
    line = [_place(point, _times_of(point)[-1], x, y) for point in points]
    marks = []
    for point, (left, top) in zip(points, line, strict=True):
        if point.measured_us is not None:
            _, foreseen = _place(point, point.us, x, y)
            marks.append(node("line", x1=left, x2=left, y1=top, y2=foreseen, class_="way"))
            marks.append(node("circle", cx=left, cy=foreseen, r=3.5, class_="hollow"))
        marks.append(titled(describe(point), node("circle", cx=left, cy=top, r=4.5, class_="mark")))
    way = " ".join(f"{left:.1f},{top:.1f}" for left, top in line)
    yield node("g", node("polyline", points=way, class_="way"), *marks, class_=colour(index))


def _rows(report: Report, x: Scale, y: Scale) -> Iterator[Element]:
    """M beside a point of so many rows, of those that are no experts', which lie elsewhere: below the lowest, or where
    there is room. Left out where there is none."""
    points = [point for step in report.steps for point in step.points]
    taken = [(*_place(point, us, x, y), 7.0) for point in points for us in _times_of(point)]
    for step in report.steps:
        single = [point for point in step.points if point.layer.routed is None] or step.points
        text = f"M = {step.m}"
        half = _LETTER * len(text) / 2
        below = sorted((_place(point, max(_times_of(point)), x, y) for point in single), key=lambda place: -place[1])
        beside = [(left + across * (half + 9), top + down) for left, top in below for across, down in _BESIDE]
        for left, top in beside:
            inside = x.start < left - half and left + half < x.end and y.end < top < y.start
            if inside and all(
                abs(left - at) > half + room or abs(top - height) > 7 + room for at, height, room in taken
            ):
                taken.append((left, top, half))
                yield node("text", text, x=left, y=top + 4, text_anchor="middle", class_="small dim over")
                break


_BESIDE = ((0, 15), (1, 0), (-1, 0), (0, -15))
"""Where words stand: below, right, left, above; across in their width, down in pixels."""


def _times_of(point: Point) -> list[float]:
    return [point.us] if point.measured_us is None else [point.us, point.measured_us]


def _place(point: Point, us: float, x: Scale, y: Scale) -> tuple[float, float]:
    return x(float(point.facts["intensity"])), y(point.tflops(us))


def shares(report: Report, width: int) -> Element:
    """A bar for each M, of the parts that each layer has of a step; and one of what was measured."""
    narrow = width != WIDE
    measured = any(step.measured_us is not None for step in report.steps)
    left, right = (46.0, width - 66.0) if narrow else (150.0 if measured else 76.0, width - 76.0)
    parts: list[Element] = []
    top = 4.0
    for step in report.steps:
        bars = [("predicted", step.us, step.shares(), 22.0)]
        found = step.measured_shares()
        if found and step.measured_us is not None:
            bars.append(("measured", step.measured_us, found, 22.0))
        for number, (kind, us, of_layers, high) in enumerate(bars):
            words = f"M = {step.m}" if not narrow else str(step.m)
            if number == 0:
                parts.append(node("text", words, x=0, y=top + 15))
            if not narrow and len(bars) > 1:
                parts.append(node("text", kind, x=left - 8, y=top + 15, text_anchor="end", class_="dim"))
            parts += _bar(step, of_layers, us, kind, (left, right, top, high))
            parts.append(node("text", time_text(us), x=width - 2, y=top + 15, text_anchor="end"))
            top += high + 2
        top += 8
    return node(
        "svg",
        *parts,
        viewBox=f"0 0 {width} {top:.0f}",
        class_=f"plot {'narrow' if narrow else 'wide'}",
        role="img",
        aria_label="Shares of the time of a step, by layer and M. The table below has the same figures.",
    )


def _bar(
    step: Step, of_layers: Sequence[float], us: float, kind: str, box: tuple[float, float, float, float]
) -> Iterator[Element]:
    start, end, top, high = box
    at = start
    for index, (point, share) in enumerate(zip(step.points, of_layers, strict=True)):
        wide = share * (end - start)
        count, text = point.layer.count, share_text(share)
        title = f"{point.layer.name}, M = {step.m}: {count} {TIMES} {time_text(share * us / count)} {kind}, {text}"
        bar = node("rect", x=at, y=top, width=wide, height=high, class_="bar")
        label = None
        if wide > _LETTER * len(text) + 8:
            label = node("text", text, x=at + wide / 2, y=top + 15, text_anchor="middle", class_="small on")
        yield titled(title, node("g", bar, label, class_=colour(index)))
        at += wide


def swatch(index: int) -> Element:
    """A layer's colour, for a legend."""
    return node(
        "svg",
        node("rect", width=12, height=12, rx=2, class_="bar"),
        viewBox="0 0 12 12",
        class_=colour(index),
        aria_hidden="true",
    )
