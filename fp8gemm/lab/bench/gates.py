"""Figures with a limit, as text and as JSON. Nothing here touches a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, Generic, TypeVar

from fp8gemm.terminal.screen import screen

R = TypeVar("R")


@dataclass(frozen=True)
class Gate(Generic[R]):
    """A limit that the worst of some figures keeps, or their geometric mean.

    Attributes:
        name: what is judged, its name in the JSON.
        limit: what the judged figure must reach, or must not exceed.
        figures: every figure that counts, by where it was measured; None for one that is not there.
        at_least: whether ``limit`` is a lower bound.
        mean: whether the geometric mean is judged, and not the worst figure.
    """

    name: str
    limit: float
    figures: Callable[[Sequence[R]], Mapping[str, float | None]]
    at_least: bool = True
    mean: bool = False

    def verdict(self, rows: Sequence[R]) -> dict[str, Any] | None:
        """The judged figure, its limit and the worst figure; None where nothing was measured."""
        figures = {label: figure for label, figure in self.figures(rows).items() if figure is not None}
        if not figures:
            return None
        at = (min if self.at_least else max)(figures, key=lambda label: figures[label])
        judged = geometric_mean(figures.values()) if self.mean else figures[at]
        return {
            "figure": round(judged, 4),
            "limit": self.limit,
            "bound": "at least" if self.at_least else "at most",
            "met": judged >= self.limit if self.at_least else judged <= self.limit,
            "mean": self.mean,
            "worst": round(figures[at], 4),
            "at": at,
            "count": len(figures),
        }


@dataclass(frozen=True)
class Gates(Generic[R]):
    """What all rows together must keep.

    Attributes:
        gates: one line each.
        key: their name in the JSON.
    """

    gates: Sequence[Gate[R]]
    key: str = "gates"

    def lines(self, rows: Sequence[R]) -> list[str]:
        """A heading and a line per gate that can be judged."""
        lines = [_line(name, verdict) for name, verdict in self.as_json(rows).items()]
        return ["\ngates", *lines] if lines else []

    def as_json(self, rows: Sequence[R]) -> dict[str, Any]:
        """Verdicts by name, of the gates that can be judged."""
        verdicts = ((gate.name, gate.verdict(rows)) for gate in self.gates)
        return {name: verdict for name, verdict in verdicts if verdict is not None}


def _line(name: str, verdict: Mapping[str, Any]) -> str:
    what = "geometric mean" if verdict["mean"] else "worst"
    line = f"{name}: {what} {verdict['figure']:.3f} of {verdict['count']}, {verdict['bound']} {verdict['limit']:g}: "
    worst = f"; worst {verdict['worst']:.3f}" if verdict["mean"] else ";"
    met = screen().paint("met", "green") if verdict["met"] else screen().paint("NOT MET", "red")
    return f"{line}{met}{worst} at {verdict['at']}"
