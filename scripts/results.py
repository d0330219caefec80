"""Draws the tables and plots of README.md and docs/ from ``docs/results/*.json``; ``--check`` only compares.

A page says where with two markers, ``<!-- results:NAME:begin -->`` and ``<!-- results:NAME:end -->``. Nobody types a
figure: a script or test writes JSON, and this is the one way from there to a page. Plots need matplotlib. Each carries
the SHA-256 of its JSON, which is what ``--check`` looks at, besides whether a page shows it: the bytes of the same plot
differ from one matplotlib to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from result_plots import canvas  # noqa: E402
from result_plots.catalogue import PLOTS, draw_plots, drawable  # noqa: E402
from result_sections import SECTIONS  # noqa: E402
from result_tables import ages  # noqa: E402
from result_tables.markdown import RESULTS, Result  # noqa: E402
from result_tables.measured import measured  # noqa: E402

from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.errors import UnsupportedError  # noqa: E402
from fp8gemm.jit.headers import include_dir  # noqa: E402
from fp8gemm.lab.provenance import headers_hash  # noqa: E402
from fp8gemm.writing import write_text  # noqa: E402

PAGES = (
    *("README.md", "docs/architecture.md", "docs/batch-invariance.md", "docs/engines.md", "docs/grouped.md"),
    "docs/install.md",
    *("docs/linear.md", "docs/measured.md", "docs/mutations.md", "docs/numerics.md", "docs/parallel.md"),
    *("docs/profiling.md", "docs/serving.md", "docs/training.md", "docs/tuning.md"),
)
INDEX = "measured"
"""The section that is drawn from all results."""

_IMAGE = re.compile(r"!\[[^\]]*\]\((?P<path>[^)\s]+)\)")
_MARKER = re.compile(r"<!-- results:(?P<name>[\w-]+):(?P<end>begin|end) -->")


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
        if name not in (*SECTIONS, INDEX):
            raise PageError(f"{page}: expected results:NAME with one of {', '.join([*SECTIONS, INDEX])}, got {name}")
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
    """The lines, where every figure is, and the picture if there is one."""
    if name == INDEX:
        try:
            return "\n".join(measured(root / RESULTS, {plot: PLOTS[plot].file for plot in PLOTS}))
        except LookupError as error:
            raise PageError(f"{page}: {error.args[0]}") from None
    section = SECTIONS[name]
    path = root / RESULTS / section.file
    try:
        result: Result = json.loads(path.read_text())
    except FileNotFoundError:
        where = " on an H200" if "h200" in path.name else ""
        raise PageError(
            f"{page}: results:{name} is drawn from {RESULTS}/{path.name}, which is missing; "
            f"{section.written_by} writes it{where}"
        ) from None
    link = _link(path, page, root)
    seed = f", seed {result['seed']}" if "seed" in result else ""
    lines = [*section.draw(result), "", f"All figures: [`{link}`]({link}){seed}."]
    if section.picture is not None:
        shows, plot = section.picture
        lines += ["", f"![{shows}]({_link(root / plot, page, root)})"]
    return "\n".join(lines)


def _link(path: Path, page: str, root: Path) -> str:
    return Path(os.path.relpath(path, (root / page).parent)).as_posix()


def check_plots(pages: Iterable[tuple[str, str]], root: Path = ROOT) -> list[str]:
    """What is wrong with the plots: one is missing or of an earlier result, or no page shows it.

    Args:
        pages: path relative to ``root`` and text.
        root: where ``docs/results`` is.
    """
    images = ((page, image["path"]) for page, text in pages for image in _IMAGE.finditer(text))
    shown = {os.path.normpath((root / page).parent / path) for page, path in images}
    complaints = []
    for name, path, result in drawable(root):
        if not canvas.shows(path, result):
            complaints.append(f"{name} does not show {RESULTS}/{PLOTS[name].file}; run scripts/results.py")
        if os.path.normpath(path) not in shown:
            complaints.append(f"no page shows {name}")
    return complaints


def main() -> int:
    """Redraw, or with ``--check`` compare; 1 if a page or plot is out of date or cannot be drawn."""
    parser = argparse.ArgumentParser(description="Draw the tables and plots of README.md and docs/ from docs/results.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    parser.add_argument("--ages", action="store_true", help="list which results are of other headers than these")
    options = parser.parse_args()
    if options.ages:
        print("\n".join(ages.lines(list(ages.ages(ROOT / RESULTS, headers_hash(include_dir()))))))
        return 0
    complaints = []
    if not options.check:
        try:
            draw_plots(ROOT)
        except UnsupportedError as error:
            print(f"results: no plots drawn: {error}")
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
            write_text(ROOT / page, fresh)
    complaints += check_plots([(page, (ROOT / page).read_text()) for page in PAGES], ROOT)
    for complaint in complaints:
        print(f"results: {complaint}", file=sys.stderr)
    return Exit.FAILED if complaints else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
