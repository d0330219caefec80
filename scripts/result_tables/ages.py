"""Which result files are of other device code than there is now. It is a list to choose from what to measure again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fp8gemm.lab.provenance import UNKNOWN
from fp8gemm.terminal.table import Column, Table, fitted

CURRENT, OTHER, NONE = "these headers", "other headers", "does not say of which headers"


class Age(NamedTuple):
    """One result file.

    Attributes:
        name: of the file.
        date, commit: as it says, or "unknown".
        verdict: what its headers are, beside those of now.
    """

    name: str
    date: str
    commit: str
    verdict: str

    @property
    def is_current(self) -> bool:
        """Whether it says that it is of these headers."""
        return self.verdict == CURRENT


def ages(folder: Path, headers: str) -> Iterator[Age]:
    """Every ``*.json`` of a folder, by name; ``headers`` is `fp8gemm.lab.provenance.headers_hash` of now."""
    for path in sorted(folder.glob("*.json")):
        result: dict[str, Any] = json.loads(path.read_text())
        heading = {**result.get("otherData", {}), **result}  # a timeline keeps its heading there
        carried = heading.get("headers", UNKNOWN)
        verdict = NONE if carried == UNKNOWN else CURRENT if carried == headers else OTHER
        date, commit = (str(heading.get(name, UNKNOWN)) for name in ("date", "commit"))
        yield Age(path.name, date, commit, verdict)


def lines(found: list[Age]) -> Iterator[str]:
    """A line for each, and how many may be old."""
    rows = [(age.name, age.date, f"{age.verdict}, commit {age.commit}") for age in found]
    table = Table(fitted([Column(left=True), Column(width=10, left=True), Column(left=True)], rows), gap="  ")
    yield from (table.line(*row) for row in rows)
    yield f"{sum(not age.is_current for age in found)} of {len(found)} may be older than the code"
