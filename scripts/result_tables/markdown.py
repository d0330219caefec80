"""Tables, and figures as they are written in them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Result = dict[str, Any]
"""The content of one result file."""

RESULTS = "docs/results"
MISSING = "-"
TURN = "turn"

Row = TypeVar("Row", bound=Mapping[str, Any])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; a bar inside a cell is escaped."""
    return [_line(heads), _line(["---"] * len(heads)), *map(_line, rows)]


def source(result: Result, *more: str) -> str:
    """The sentence that says on what and when: GPU, date, and what else there is to say."""
    return f"{', '.join([str(result['gpu']), str(result['date']), *more])}."


def small(value: float) -> str:
    """Two decimals and an exponent without zeros, as in 1.68e-3; 0 as it is."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def limit(value: float) -> str:
    """As `small`, without the mantissa's trailing zeros."""
    mantissa, _, exponent = small(value).partition("e")
    return f"{float(mantissa):g}" + (f"e{exponent}" if exponent else "")


def whole(value: float) -> str:
    """A whole number with thin groups of three, as in 100 000."""
    return f"{round(value):,}".replace(",", " ")


def duration(seconds: float) -> str:
    """Seconds below two minutes, else hours, minutes and seconds."""
    return f"{seconds:.3g} s" if seconds < 120 else str(datetime.timedelta(seconds=round(seconds)))


def regime(row: Mapping[str, Any]) -> str:
    """How a row's peers shared the GPU's time; `MISSING` where they took turns."""
    said = row.get("regime", TURN)
    return MISSING if said == TURN else str(said)


def by_m(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each M, by what stands in a table for it: with the regime where peers did not take turns."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["m"])):
        found.setdefault((row["m"], regime(row)), []).append(row)
    return [(str(m) if said == MISSING else f"{m}, {said}", of_m) for (m, said), of_m in found.items()]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
