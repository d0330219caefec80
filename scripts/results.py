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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from result_plots import bench as bench_plot  # noqa: E402
from result_plots import calibration as calibration_plot  # noqa: E402
from result_plots import canvas  # noqa: E402
from result_plots import grouped as grouped_plot  # noqa: E402
from result_plots import linear as linear_plot  # noqa: E402
from result_plots import model as model_plot  # noqa: E402
from result_plots import small_m as small_m_plot  # noqa: E402
from result_plots import sustained_clock as sustained_clock_plot  # noqa: E402
from result_plots import timeline as timeline_plot  # noqa: E402
from result_tables import accuracy, ages, checks, choice, grouped, install, linear, model, serving, small_m, speed  # noqa: E402  # noqa: E402
from result_tables.markdown import Result  # noqa: E402

from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.errors import UnsupportedError  # noqa: E402
from fp8gemm.jit.headers import include_dir  # noqa: E402
from fp8gemm.lab.provenance import headers_hash  # noqa: E402
from fp8gemm.writing import write_text  # noqa: E402

PAGES = (
    *("README.md", "docs/architecture.md", "docs/grouped.md", "docs/install.md", "docs/linear.md"),
    *("docs/mutations.md", "docs/numerics.md", "docs/profiling.md", "docs/serving.md", "docs/tuning.md"),
)
RESULTS = "docs/results"

_IMAGE = re.compile(r"!\[[^\]]*\]\((?P<path>[^)\s]+)\)")
_MARKER = re.compile(r"<!-- results:(?P<name>[\w-]+):(?P<end>begin|end) -->")


@dataclass(frozen=True)
class Section:
    """What goes between a pair of markers.

    Attributes:
        file: the result file, in ``docs/results``.
        draw: from its content to lines of Markdown.
        written_by: who writes that file, for the error where it is missing.
        picture: what a plot of the same file shows, and the plot; the section then has it at its end.
    """

    file: str
    draw: Callable[[Result], list[str]]
    written_by: str
    picture: tuple[str, str] | None = None


@dataclass(frozen=True)
class Plot:
    """A picture of one result file.

    Attributes:
        file: the result file, in ``docs/results``; without it there is no picture.
        draw: from its content to a PNG.
    """

    file: str
    draw: Callable[[Result, Path], None]


_ACCURACY = ("accuracy-h200.json", "scripts/accuracy.py --json")
_BENCH = ("bench-h200.json", "scripts/bench.py --json")
_CALIBRATION = "calibration-h200.json"
_MODEL, _MODEL_PLOT = "model-accuracy-h200.json", "docs/plots/model-accuracy-h200.png"
_SMALL_M, _SMALL_M_PLOT = "bench-small-m-h200.json", "docs/plots/bench-small-m-h200.png"
_LINEAR, _LINEAR_PLOT = "bench-linear-h200.json", "docs/plots/bench-linear-h200.png"
_GROUPED, _GROUPED_PLOT = "bench-grouped-h200.json", "docs/plots/bench-grouped-h200.png"
_DECODER, _DECODER_PLOT = "decoder-h200.json", "docs/plots/decoder-h200.png"
SECTIONS = {
    "bench": Section(_BENCH[0], speed.bench, _BENCH[1]),
    "bench_shapes": Section(_BENCH[0], speed.bench_shapes, _BENCH[1]),
    "calibration": Section(_CALIBRATION, choice.calibration, "scripts/calibrate.py --json"),
    "random": Section("random-burst-h100.json", choice.random_shapes, "fp8gemm tune --random 100 --results"),
    "bench_burst": Section("bench-burst-h100.json", speed.bench, _BENCH[1]),
    "coldstart": Section("coldstart-h200.json", serving.coldstart, "scripts/coldstart.py --json"),
    "warmup": Section("warmup.json", serving.warmup, "scripts/warmup_time.py --json"),
    "sealed": Section("sealed-h200.json", serving.sealed, "tests/gpu/test_sealed.py"),
    "cache_faults": Section("cache-faults-h200.json", serving.cache_faults, "tests/gpu/test_cache_faults.py"),
    "batch_invariant": Section(
        "batch-invariant-h200.json", speed.batch_invariant, "scripts/bench.py --batch-invariant"
    ),
    "small_m": Section(
        _SMALL_M,
        small_m.small_m,
        "scripts/bench.py --small-m --json",
        picture=("Microseconds by M at each N x K: fp8gemm, its peers, and reading the weight alone", _SMALL_M_PLOT),
    ),
    "linear": Section(
        _LINEAR,
        linear.linear,
        "scripts/bench.py --linear --json",
        picture=("Speed of a linear layer relative to a bfloat16 one, by M at each N x K and on average", _LINEAR_PLOT),
    ),
    "linear_shapes": Section(_LINEAR, linear.linear_shapes, "scripts/bench.py --linear --json"),
    "quantize_kernels": Section(
        "bench-quantize-h200.json", linear.quantize_kernels, "scripts/bench.py --quantize --json"
    ),
    "grouped": Section(
        _GROUPED,
        grouped.grouped,
        "scripts/bench.py --grouped --json",
        picture=(
            "Speed of contiguous groups, time of few rows over that of reading the weights, and speed of layers",
            _GROUPED_PLOT,
        ),
    ),
    "experts": Section(_GROUPED, grouped.experts, "scripts/bench.py --grouped --json"),
    "host": Section("host-h200.json", linear.host, "scripts/bench.py --host --json"),
    "decoder": Section(
        _DECODER,
        linear.decoder,
        "scripts/decoder.py --compile --json",
        picture=("Speed of a decoder's steps in FP8 relative to bfloat16", _DECODER_PLOT),
    ),
    "accuracy": Section(_ACCURACY[0], accuracy.accuracy, _ACCURACY[1]),
    "accuracy_summary": Section(_ACCURACY[0], accuracy.accuracy_summary, _ACCURACY[1]),
    "model_accuracy": Section(
        _MODEL,
        model.model_accuracy,
        "scripts/accuracy.py --model --json",
        picture=("Noise of each FP8 layer in dB, and how far each sentence's embedding moves", _MODEL_PLOT),
    ),
    "gates": Section("gates-h200.json", checks.gates, "tests/gpu/test_sweep.py"),
    "mutations": Section("mutations-h200.json", checks.mutations, "the mutation tests"),
    "mutations_summary": Section("mutations-h200.json", checks.mutations_summary, "the mutation tests"),
    "faults": Section("faults-h200.json", checks.faults, "the fault tests"),
    "sanitize": Section("sanitize-h200.json", checks.sanitize, "scripts/sanitize.py --json"),
    "stress": Section("stress-h200.json", checks.stress, "the stress test"),
    "compare_headers": Section(
        "compare-headers-h200.json", checks.compare_headers, "scripts/compare_headers.py --json"
    ),
    "install_matrix": Section("install-matrix.json", install.matrix, "scripts/matrix.py --json"),
    "release_order": Section("release-order-h200.json", checks.release_order, "scripts/release_order.py --json"),
}
PLOTS = {
    "docs/plots/bench-h200.png": Plot(_BENCH[0], bench_plot.draw),
    _SMALL_M_PLOT: Plot(_SMALL_M, small_m_plot.draw),
    _LINEAR_PLOT: Plot(_LINEAR, linear_plot.draw),
    _GROUPED_PLOT: Plot(_GROUPED, grouped_plot.draw),
    _DECODER_PLOT: Plot(_DECODER, linear_plot.draw_decoder),
    _MODEL_PLOT: Plot(_MODEL, model_plot.draw),
    "docs/plots/calibration-h200.png": Plot(_CALIBRATION, calibration_plot.draw),
    "docs/plots/timeline-h200.png": Plot("timeline-h200.json", timeline_plot.draw),
    "docs/plots/sustained-clock-h100.png": Plot("sustained-clock-h100.json", sustained_clock_plot.draw),
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
    """The lines, where every figure is, and the picture if there is one."""
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
    for name, path, result in _drawable(root):
        if not canvas.shows(path, result):
            complaints.append(f"{name} does not show {RESULTS}/{PLOTS[name].file}; run scripts/results.py")
        if os.path.normpath(path) not in shown:
            complaints.append(f"no page shows {name}")
    return complaints


def draw_plots(root: Path = ROOT) -> None:
    """Draw every plot whose result is there.

    Raises:
        UnsupportedError: matplotlib is not installed, and there is one to draw.
    """
    for name, path, result in _drawable(root):
        PLOTS[name].draw(result, path)


def _drawable(root: Path) -> Iterator[tuple[str, Path, Result]]:
    """Name, path and result of each plot whose result is there."""
    for name, plot in PLOTS.items():
        file = root / RESULTS / plot.file
        if file.exists():
            yield name, root / name, json.loads(file.read_text())


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
