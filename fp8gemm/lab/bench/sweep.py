"""Shape after shape within a time budget, each printed and written as soon as it is measured. Touches no GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fp8gemm.lab.bench.summary import Statement
from fp8gemm.writing import write_text


class Measured(Protocol):
    """What came of one shape."""

    @property
    def failed(self) -> Mapping[str, str]:
        """Reason, by name, of what has no time."""

    def as_json(self) -> dict[str, Any]:
        """For the file."""


S = TypeVar("S")
R = TypeVar("R", bound=Measured)
R_contra = TypeVar("R_contra", contravariant=True)


class Printed(Protocol[R_contra]):
    """A text table."""

    def header(self) -> str:
        """What stands above the rows."""

    def line(self, row: R_contra) -> str:
        """One row."""


@dataclass
class Sweep(Generic[S, R]):
    """Measures shapes in order and keeps what came of it.

    Attributes:
        table: how rows are printed.
        measure: gives one shape's row; a shape prints as a name.
        heading: what the JSON says besides the rows.
        summaries: what is said of all rows together.
        json_path: rewritten after each shape, so that an interrupted run keeps its results; None for no file.
        budget_seconds: no shape is started after this long; None for no limit.
        emit: prints one or more lines.
        clock: seconds.
        unit: what stands behind the names of shapes that were left out.
    """

    table: Printed[R]
    measure: Callable[[S], R]
    heading: Mapping[str, Any]
    summaries: Sequence[Statement[R]] = ()
    json_path: Path | None = None
    budget_seconds: float | None = None
    emit: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    unit: str = " (M x N x K)"
    rows: list[R] = field(default_factory=list)
    left_out: list[S] = field(default_factory=list)

    def run(self, shapes: Sequence[S], *, advance: Callable[[], None] = lambda: None) -> None:
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
            write_text(self.json_path, json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """The heading, the summaries and the rows; left-out shapes where there are any."""
        means = {summary.key: summary.as_json(self.rows) for summary in self.summaries}
        result = {**self.heading, **means, "rows": [row.as_json() for row in self.rows]}
        return result | ({"left_out": [str(shape) for shape in self.left_out]} if self.left_out else {})

    def _summarise(self) -> None:
        for summary in self.summaries:
            for line in summary.lines(self.rows):
                self.emit(line)
        if self.left_out:
            names = ", ".join(map(str, self.left_out))
            self.emit(f"left out, the budget of {self.budget_seconds:g} s was used up: {names}{self.unit}")
