"""Shape after shape within a time budget, each printed and written as soon as it is measured. Touches no GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fp8gemm.benchmark.report import Row, Shape, Table, geomeans


@dataclass
class Sweep:
    """Measures shapes in order and keeps what came of it.

    Attributes:
        table: how rows are printed.
        measure: gives one shape's row.
        heading: what the JSON says besides the rows.
        json_path: rewritten after each shape, so that an interrupted run keeps its results; None for no file.
        budget_seconds: no shape is started after this long; None for no limit.
        emit: prints one or more lines.
        clock: seconds.
    """

    table: Table
    measure: Callable[[Shape], Row]
    heading: Mapping[str, Any]
    json_path: Path | None = None
    budget_seconds: float | None = None
    emit: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    rows: list[Row] = field(default_factory=list)
    left_out: list[Shape] = field(default_factory=list)

    def run(self, shapes: Sequence[Shape], *, advance: Callable[[], None] = lambda: None) -> None:
        """Measure ``shapes``; ``advance`` is called after each that was measured."""
        start = self.clock()
        self.emit(self.table.header())
        for index, shape in enumerate(shapes):
            if self.budget_seconds is not None and self.clock() - start > self.budget_seconds:
                self.left_out = list(shapes[index:])
                break
            row = self.measure(shape)
            self.rows.append(row)
            self.emit(self.table.line(row))
            for peer, reason in row.failed.items():
                self.emit(f"{'':>20} | {peer} skipped: {reason}")
            self.write()
            advance()
        self.write()
        self._summarise()

    def write(self) -> None:
        """Write what there is so far."""
        if self.json_path is not None:
            self.json_path.parent.mkdir(parents=True, exist_ok=True)
            self.json_path.write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """The heading, the rows and their means; left-out shapes where there are any."""
        means = {
            str(m): {peer: {"speed": round(mean, 4), "shapes": count} for peer, (mean, count) in by_peer.items()}
            for m, by_peer in geomeans(self.rows, self.table.ours, self.table.others).items()
        }
        result = {**self.heading, "geomean_relative_speed": means, "rows": [row.as_json() for row in self.rows]}
        return result | ({"left_out": [str(shape) for shape in self.left_out]} if self.left_out else {})

    def _summarise(self) -> None:
        lines = self.table.geomeans(self.rows)
        if lines:
            self.emit(f"\nspeed of {self.table.ours} relative to its peers, geometric mean (number of shapes)")
        for line in lines:
            self.emit(line)
        if self.left_out:
            names = ", ".join(map(str, self.left_out))
            self.emit(f"left out, the budget of {self.budget_seconds:g} s was used up: {names} (M x N x K)")
