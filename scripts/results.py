"""Draws the tables of README.md and docs/ from ``docs/results/*.json``; ``--check`` only compares.

A page says where with two markers, ``<!-- results:NAME:begin -->`` and ``<!-- results:NAME:end -->``. Nobody types a
figure: a script or test writes JSON, and this is the one way from there to a page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from result_tables import accuracy, checks, speed  # noqa: E402
from result_tables.markdown import Result  # noqa: E402

PAGES = ("README.md", "docs/numerics.md", "docs/tuning.md")
RESULTS = "docs/results"
EXIT_FAILED = 1

_MARKER = re.compile(r"<!-- results:(?P<name>[\w-]+):(?P<end>begin|end) -->")


@dataclass(frozen=True)
class Section:
    """What goes between a pair of markers.

    Attributes:
        file: the result file, in ``docs/results``.
        draw: from its content to lines of Markdown.
        written_by: who writes that file, for the error where it is missing.
    """

    file: str
    draw: Callable[[Result], list[str]]
    written_by: str


_ACCURACY = ("accuracy-h200.json", "scripts/accuracy.py --json")
SECTIONS = {
    "bench": Section("bench-h200.json", speed.bench, "scripts/bench.py --json"),
    "coldstart": Section("coldstart-h200.json", speed.coldstart, "scripts/coldstart.py --json"),
    "batch_invariant": Section(
        "batch-invariant-h200.json", speed.batch_invariant, "scripts/bench.py --batch-invariant"
    ),
    "accuracy": Section(_ACCURACY[0], accuracy.accuracy, _ACCURACY[1]),
    "accuracy_summary": Section(_ACCURACY[0], accuracy.accuracy_summary, _ACCURACY[1]),
    "gates": Section("gates-h200.json", checks.gates, "tests/gpu/test_sweep.py"),
    "mutations": Section("mutations-h200.json", checks.mutations, "the mutation tests"),
    "faults": Section("faults-h200.json", checks.faults, "the fault tests"),
    "sanitize": Section("sanitize-h200.json", checks.sanitize, "scripts/sanitize.py --json"),
    "stress": Section("stress-h200.json", checks.stress, "the stress test"),
}


class PageError(Exception):
    """A page cannot be drawn: a marker that is wrong, or a result that is missing."""


def redrawn(text: str, page: str, root: Path = ROOT) -> str:
    """``text`` with fresh lines between its markers.

    Args:
        text: the page.
        page: its path relative to ``root``, from which links lead.
        root: where ``docs/results`` is.

    Raises:
        PageError: markers do not pair up, a name is unknown, or a result file is missing.
    """
    drawn, position, opened = [], 0, None
    for marker in _MARKER.finditer(text):
        name = marker["name"]
        if name not in SECTIONS:
            raise PageError(f"{page}: expected results:NAME with one of {', '.join(SECTIONS)}, got {name}")
        if (marker["end"] == "begin") != (opened is None) or (opened is not None and opened != name):
            raise PageError(f"{page}: {marker[0]} does not pair up with the markers around it")
        if opened is None:
            drawn.append(text[position : marker.end()])
            opened = name
        else:
            drawn.append(f"\n{_section(name, page, root)}\n{marker[0]}")
            opened = None
        position = marker.end()
    if opened is not None:
        raise PageError(f"{page}: results:{opened} begins and does not end")
    return "".join([*drawn, text[position:]])


def _section(name: str, page: str, root: Path) -> str:
    """The lines and, last, where every figure is."""
    section = SECTIONS[name]
    path = root / RESULTS / section.file
    try:
        result: Result = json.loads(path.read_text())
    except FileNotFoundError:
        raise PageError(
            f"{page}: results:{name} is drawn from {RESULTS}/{section.file}, which is missing; "
            f"{section.written_by} writes it on an H200"
        ) from None
    link = Path(os.path.relpath(path, (root / page).parent)).as_posix()
    seed = f", seed {result['seed']}" if "seed" in result else ""
    return "\n".join([*section.draw(result), "", f"All figures: [`{link}`]({link}){seed}."])


def main() -> int:
    """Rewrite, or with ``--check`` compare; 1 if a page is out of date or cannot be drawn."""
    parser = argparse.ArgumentParser(description="Draw the tables of README.md and docs/ from docs/results.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    options = parser.parse_args()
    complaints = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        try:
            fresh = redrawn(text, page)
        except PageError as error:
            complaints.append(str(error))
            continue
        if options.check and text != fresh:
            complaints.append(f"{page} does not show docs/results; run scripts/results.py")
        elif text != fresh:
            (ROOT / page).write_text(fresh)
    for complaint in complaints:
        print(f"results: {complaint}", file=sys.stderr)
    return EXIT_FAILED if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
