"""Results that are stored with the project, which tests hold it to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def rows_of(file: str) -> list[dict[str, Any]]:
    """The rows of a result, anew each time: a test may change them."""
    return list(json.loads((RESULTS / file).read_text())["rows"])


def runs_of(file: str) -> list[dict[str, Any]]:
    """The same of a result that has several runs, each with its rows."""
    return list(json.loads((RESULTS / file).read_text())["runs"])
