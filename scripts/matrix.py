"""The wheel beside each torch and under each Python, each time in a new environment, as a user installs it.

A row is one Python and one torch. ``pip install`` of the wheel in dist/ with that torch; then, in another directory,
the import, ``fp8gemm info``, a small ``fp8gemm demo`` and a warmup with the NVRTC that came along; tests of the sdist
against the installed package; a warmup with the NVRTC of the other CUDA. The environment is removed after its row.

``--json FILE`` is written after each row, and keeps the rows of FILE that were not asked for. A row that cannot be had
is in it with the reason. Exit code 0: every row passed. 1: otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
sys.path[:0] = [str(SCRIPTS), str(ROOT)]

from matrix_steps import DEMO, LAST, STEPS, WARMUP, Environment, Failed, Told, tests  # noqa: E402

from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, json_file, note, tell, tell_json  # noqa: E402
from fp8gemm.lab.bench.modes import processor_name  # noqa: E402
from fp8gemm.lab.provenance import commit_of  # noqa: E402

HERE = ".".join(platform.python_version_tuple()[:2])
NEWEST = "newest"
MEET_TORCH_OR_PYTHON = (
    *("import", "frozen", "settings", "entry_points", "forking"),
    *("checks", "operands", "dense", "dense_arguments", "epilogue", "grouped_checks", "new_outputs", "plan"),
    *("quantize", "quantize_arguments", "reference", "reference_grouped", "ops", "fakes_refuse", "compile", "sharding"),
    *("linear", "linear_state", "linear_plan", "convert", "saving", "experts", "experts_state"),
    *("deep_gemm", "deep_gemm_installed", "transformers", "transformers_checkpoint"),
)
"""The files of tests/unit in which another torch, Python or library can make a difference."""
TESTS = (
    *(f"tests/unit/test_{name}.py" for name in MEET_TORCH_OR_PYTHON),
    "--deselect=tests/unit/test_import.py::test_import_is_quick",  # of wall-clock time; a row has it
)


def run(python: str, torch: str, dist: Path, *, uv: bool, words: Sequence[str]) -> Told:
    """One row: each step with its seconds, up to the first that failed, which is under "problem"."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    row: Told = {
        "python": python,
        "torch": torch,
        "date": datetime.date.today().isoformat(),
        "commit": commit_of(ROOT),
        "installer": "uv" if uv else "pip",
        "problem": None,
    }
    interpreter = find_python(python)
    if interpreter is None:
        return {**row, "problem": f"no Python {python} here"}
    row["python_version"] = interpreter[1]
    steps = {**STEPS, "tests": lambda environment: tests(environment, words)} if words else STEPS
    with tempfile.TemporaryDirectory(prefix="fp8gemm-matrix-") as home:
        asked = "torch" if torch == NEWEST else f"torch=={torch}"
        environment = Environment(Path(home), wheel.resolve(), sdist.resolve(), asked, uv)
        environment.make(interpreter[0])
        for name, step in {**steps, **LAST}.items():
            started = time.perf_counter()
            try:
                row[name] = step(environment)
            except Failed as error:
                row["problem"] = f"{name}: {str(error).replace(home, '...')}"
                break
            row[name]["seconds"] = round(time.perf_counter() - started, 1)
            if sys.stderr.isatty():
                note(f"{python}, torch {torch}: {name} {row[name]['seconds']} s")
    return row


def find_python(version: str) -> tuple[str, str] | None:
    """The path and full version of ``python3.12`` for "3.12", or of this Python; None if there is none that runs."""
    command = sys.executable if version == HERE else f"python{version}"
    asked = [command, "-c", "import platform, sys; print(sys.executable, platform.python_version())"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # a version manager's command may be there and not run
        return None
    path, _, full = done.stdout.strip().rpartition(" ")
    return path, full


def passed(row: Told) -> bool:
    """Whether all of a row went well."""
    return row["problem"] is None and not row["demo"]["failed"] and not row.get("tests", {}).get("failed")


def line(row: Told) -> str:
    """A row for people."""
    name = f"Python {row['python']}, torch {row['torch']}"
    if row["problem"] is not None:
        return f"{name}: {row['problem']}"
    told = f"{name}: {row['import']['torch']}, NVRTC {row['warmup']['nvrtc']} and {row['other_warmup']['nvrtc']}"
    counts = row.get("tests")
    if counts is None:
        return told
    told += f", tests: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    return "\n  ".join([told, *counts["failures"]])


def together(before: Sequence[Told], row: Told) -> list[Told]:
    """The rows with a new one in its place."""
    others = [each for each in before if (each["python"], each["torch"]) != (row["python"], row["torch"])]
    return sorted([*others, row], key=lambda each: (_number(each["torch"]), _number(each["python"])))


def _number(version: str) -> tuple[int, ...]:
    return (10**6,) if version == NEWEST else tuple(map(int, version.split(".")))


def pinned_torch() -> Iterator[str]:
    """The torch of constraints.txt."""
    yield from re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows, print and write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[HERE], metavar="X.Y", help=f"default {HERE}")
    parser.add_argument(
        "--torch", nargs="+", default=[*pinned_torch()], metavar="X.Y.Z", help="or newest; default constraints.txt's"
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="DIR", help="of make dist, the default")
    parser.add_argument("--uv", action="store_true", help="install with uv, which links files, in place of pip")
    parser.add_argument(
        "--tests", nargs="*", default=TESTS, metavar="PATH", help="or none; default those that meet torch or Python"
    )
    add_json(parser)
    options = parser.parse_args(argv)
    file = json_file(options)
    rows = json.loads(file.read_text())["rows"] if file is not None and file.exists() else []
    fine = True
    for torch in options.torch:
        for python in options.python:
            row = run(python, torch, options.dist, uv=options.uv, words=options.tests)
            fine = fine and passed(row)
            tell(options, line(row))
            rows = together(rows, row)
            if file is not None:
                tell_json(options, document(rows))
    if file is None:
        tell_json(options, document(rows))
    return Exit.DONE if fine else Exit.FAILED


def document(rows: Sequence[Told]) -> Told:
    """What is written: the machine and every row."""
    return {
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "commands": [" ".join(["fp8gemm", *words]) for words in (DEMO, WARMUP)],
        "rows": list(rows),
    }


if __name__ == "__main__":
    sys.exit(main())
