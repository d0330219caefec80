"""Geometric means over the shapes of one M in one regime, as text and as JSON. Nothing here touches a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, Protocol, TypeVar

from fp8gemm.lab.bench.report import Row

Ratio = tuple[str, str]
"""Two peers: the time of the first over that of the second."""

R_contra = TypeVar("R_contra", contravariant=True)


class Statement(Protocol[R_contra]):
    """Something that is said of all rows together."""

    @property
    def key(self) -> str:
        """Its name in the JSON."""

    def lines(self, rows: Sequence[R_contra]) -> list[str]:
        """As text; none where there is nothing to say."""

    def as_json(self, rows: Sequence[R_contra]) -> dict[str, Any]:
        """As figures."""


@dataclass(frozen=True)
class Summary:
    """One group of ratios.

    Attributes:
        key: its name in the JSON.
        title: its heading in the text.
        figure: what a ratio is, a name in the JSON: ``speed`` or ``time``.
        ratios: by a label, often the name of the one that is compared with.
    """

    key: str
    title: str
    figure: str
    ratios: Mapping[str, Ratio]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """The heading and a line per M, in order of first appearance; nothing where no two were timed. The count says
        how many shapes a mean is over."""
        lines = []
        for m, means in geomeans(rows, self.ratios).items():
            cells = ", ".join(f"{mean:.3f} of {label} ({count})" for label, (mean, count) in means.items())
            lines.append(f"M = {m}: {cells}")
        return [f"\n{self.title}, geometric mean (number of shapes)", *lines] if lines else []

    def as_json(self, rows: Sequence[Row]) -> dict[str, Any]:
        """By M, with the regime where peers were alone, and label."""
        return {
            m: {label: {self.figure: round(mean, 4), "shapes": count} for label, (mean, count) in means.items()}
            for m, means in geomeans(rows, self.ratios).items()
        }


def geomeans(rows: Sequence[Row], ratios: Mapping[str, Ratio]) -> dict[str, dict[str, tuple[float, int]]]:
    """Geometric mean of each ratio and the number of shapes it is over, by M and label; an M is "512 burst" where peers
    were alone."""
    result: dict[str, dict[str, tuple[float, int]]] = {}
    for m in dict.fromkeys(row.at(row.shape.m) for row in rows):
        for label, ratio in ratios.items():
            found = [row.time_ratio(*ratio) for row in rows if row.at(row.shape.m) == m]
            timed = [value for value in found if value is not None]
            if timed:
                result.setdefault(m, {})[label] = (geometric_mean(timed), len(timed))
    return result
