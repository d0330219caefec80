"""Shape after shape within a time budget, each printed and written as soon as it is measured. Touches no GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    def remark(self, text: str) -> str:
        """What is to be said of the row above."""


@dataclass(frozen=True)
class Mode(Generic[S, R]):
    """One run of the command.

    Attributes:
        shapes: in the order in which they are measured.
        table: how rows are printed.
        measure: gives one shape's rows, one after the other.
        summaries: what is said of all rows together.
        lacks: whether a row has no time for something of ours.
        heading: what the JSON says besides the rows.
        skipped: reason, by peer, of those that this machine has not.
        unit: what stands behind the names of shapes that were left out.
    """

    shapes: Sequence[S]
    table: Printed[R]
    measure: Callable[[S], Iterable[R]]
    summaries: Sequence[Statement[R]]
    lacks: Callable[[R], bool]
    heading: Mapping[str, Any]
    skipped: Mapping[str, str] = field(default_factory=dict)
    unit: str = " (M x N x K)"


def one_row(measure: Callable[[S], R]) -> Callable[[S], tuple[R]]:
    """For a `Mode` whose shapes have one row each."""
    return lambda shape: (measure(shape),)


@dataclass
class Sweep(Generic[S, R]):
    """Measures shapes in order and keeps what came of it.

    Attributes:
        mode: what is measured.
        json_path: rewritten after each shape, so that an interrupted run keeps its results; None for no file.
        budget_seconds: no shape is started after this long; None for no limit.
        emit: prints one or more lines.
        clock: seconds.
    """

    mode: Mode[S, R]
    json_path: Path | None = None
    budget_seconds: float | None = None
    emit: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    rows: list[R] = field(default_factory=list)
    left_out: list[S] = field(default_factory=list)

    def run(self, *, advance: Callable[[], None] = lambda: None) -> None:
        """Measure every shape that the budget allows; ``advance`` is called after each."""
        start = self.clock()
        self.emit(self.mode.table.header())
        for index, shape in enumerate(self.mode.shapes):
            if self.budget_seconds is not None and self.clock() - start > self.budget_seconds:
                self.left_out = list(self.mode.shapes[index:])
                break
            for row in self.mode.measure(shape):
                self.rows.append(row)
                self.emit(self.mode.table.line(row))
                for peer, reason in row.failed.items():
                    self.emit(self.mode.table.remark(f"{peer} skipped: {reason}"))
                self.write()
            advance()
        self.write()
        self._summarise()

    def lacks_ours(self) -> bool:
        """Whether something of ours has no time for a shape."""
        return any(self.mode.lacks(row) for row in self.rows)

    def write(self) -> None:
        """Write what there is so far."""
        if self.json_path is not None:
            write_text(self.json_path, json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """The heading, the summaries and the rows; left-out shapes where there are any."""
        means = {summary.key: summary.as_json(self.rows) for summary in self.mode.summaries}
        result = {**self.mode.heading, **means, "rows": [row.as_json() for row in self.rows]}
        return result | ({"left_out": [str(shape) for shape in self.left_out]} if self.left_out else {})

    def _summarise(self) -> None:
        for summary in self.mode.summaries:
            for line in summary.lines(self.rows):
                self.emit(line)
        if self.left_out:
            names = ", ".join(map(str, self.left_out))
            self.emit(f"left out, the budget of {self.budget_seconds:g} s was used up: {names}{self.mode.unit}")
