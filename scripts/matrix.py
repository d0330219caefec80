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
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, json_file, note, tell, tell_json  # noqa: E402
from fp8gemm.lab.bench.modes import processor_name  # noqa: E402
from fp8gemm.lab.provenance import commit_of  # noqa: E402

NEWEST = "newest"
MEET_TORCH_OR_PYTHON = (
    *("import", "frozen", "settings", "entry_points", "cli", "warmup_words", "forking"),
    *("checks", "operands", "dense", "dense_arguments", "epilogue", "grouped_checks", "new_outputs", "plan"),
    *("quantize", "quantize_arguments", "reference", "reference_grouped", "ops", "fakes_refuse", "compile", "sharding"),
    *("linear", "linear_state", "linear_plan", "convert", "saving", "experts", "experts_state"),
    *("deep_gemm", "deep_gemm_installed", "engines", "transformers", "transformers_checkpoint"),
)
"""The files of tests/unit in which another torch, Python or library can make a difference."""
TESTS = (
    *(f"tests/unit/test_{name}.py" for name in MEET_TORCH_OR_PYTHON),
    "--deselect=tests/unit/test_import.py::test_import_is_quick",  # of wall-clock time; a row has it
)
DEMO = ("demo", "--m", "1,64", "--nk", "256x512", "--json")
WARMUP = ("warmup", "--nk", "2112x7168", "--max-m", "64", "--chip", "h200", "--calls", "layer", "--json")
# NOTE: the wheel of CUDA 13 is the one that loads where both are there.
OTHER_NVRTC = {12: ("install", "nvidia-cuda-nvrtc==13.*"), 13: ("uninstall", "nvidia-cuda-nvrtc")}
"""From the major version that is loaded to that of the other CUDA."""
_IMPORT = """
import json, time, torch
started = time.perf_counter()
import fp8gemm
milliseconds = 1e3 * (time.perf_counter() - started)
print(json.dumps({"torch": torch.__version__, "file": fp8gemm.__file__, "milliseconds": round(milliseconds, 1)}))
"""

Told = dict[str, Any]


class Failed(Exception):
    """A step of a row that did not do what it should, with what it said."""


@dataclass(frozen=True)
class Environment:
    """A new virtual environment, and a directory to work in.

    Attributes:
        home: holds both, and the kernels.
        wheel, sdist: of fp8gemm.
        torch: the requirement.
        uv: whether uv installs, which links files that other environments have, in place of pip.
    """

    home: Path
    wheel: Path
    sdist: Path
    torch: str
    uv: bool

    @property
    def python(self) -> Path:
        return self.home / "venv" / "bin" / "python"

    def make(self, interpreter: str) -> None:
        """Make it, and the directory."""
        (self.home / "elsewhere").mkdir()
        self._run(interpreter, "-m", "venv", *(["--without-pip"] if self.uv else []), str(self.home / "venv"))

    def pip(self, action: str, *words: str) -> None:
        """Install or uninstall."""
        if self.uv:
            from uv import find_uv_bin

            self._run(find_uv_bin(), "--quiet", "pip", action, "--python", str(self.python), *words)
        else:
            sure = ["--yes"] if action == "uninstall" else []
            self._run(str(self.python), "-m", "pip", action, "--quiet", "--disable-pip-version-check", *sure, *words)

    def fp8gemm(self, *words: str) -> Told:
        """What a command prints with ``--json``."""
        return dict(json.loads(self._run(str(self.python.parent / "fp8gemm"), *words)))

    def evaluate(self, program: str) -> Told:
        """What a program prints."""
        return dict(json.loads(self._run(str(self.python), "-c", program)))

    def pytest(self, tree: Path, words: Sequence[str]) -> None:
        """Run tests; that some fail is in the report alone."""
        self._run(str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, cwd=tree, most=1)

    def _run(self, *command: str, cwd: Path | None = None, most: int = 0) -> str:
        """What a process prints that knows nothing of this checkout and ends with an exit code up to ``most``."""
        dropped = ("FP8GEMM_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        environment["FP8GEMM_CACHE_DIR"] = str(self.home / "kernels")
        cwd = cwd or self.home / "elsewhere"
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
        if not 0 <= done.returncode <= most:
            raise Failed((done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300])
        return done.stdout


def install(environment: Environment) -> Told:
    environment.pip("install", str(environment.wheel), environment.torch)
    size = sum(path.lstat().st_size for path in (environment.home / "venv").rglob("*"))
    return {"megabytes": round(size / 1e6)}


def imported(environment: Environment) -> Told:
    """What torch it is, and milliseconds of the import beside it; the first writes bytecode, and is not counted."""
    told = [environment.evaluate(_IMPORT) for _ in range(2)][1]
    if not Path(told.pop("file")).is_relative_to(environment.home):
        raise Failed("expected the installed package, got another")
    return told


def info(environment: Environment) -> Told:
    told = environment.fp8gemm("info", "--json")
    parts = {name: told[name] for name in ("torch", "cuda_bindings", "nvrtc")}
    problems = [f"{name}: {part['problem']}" for name, part in parts.items() if part["problem"]]
    if problems:
        raise Failed("; ".join(problems))
    return {"bindings": parts["cuda_bindings"]["version"], "nvrtc": parts["nvrtc"]["version"]}


def demo(environment: Environment) -> Told:
    told = environment.fp8gemm(*DEMO)
    return {name: told[name] for name in ("passed", "failed", "kernels_compiled")}


def warmup(environment: Environment) -> Told:
    """Kernels of one weight, into an empty directory, and which NVRTC compiled them."""
    version = info(environment)["nvrtc"]
    told = environment.fp8gemm(*WARMUP, "--cache-dir", str(environment.home / f"kernels-{version}"))
    if not told["kernels"] == told["compiled"] > 0:
        raise Failed(f"expected every kernel compiled, got {told}")
    return {"nvrtc": version, "kernels": told["kernels"]}


def other_warmup(environment: Environment) -> Told:
    loaded = int(info(environment)["nvrtc"].partition(".")[0])
    environment.pip(*OTHER_NVRTC[loaded])
    told = warmup(environment)
    if not told["nvrtc"].startswith(f"{25 - loaded}."):
        raise Failed(f"expected NVRTC of CUDA {25 - loaded}, got {told['nvrtc']}")
    return told


def tests(environment: Environment, words: Sequence[str]) -> Told:
    """What the sdist's tests say of the installed package, which stands in the place of theirs."""
    before = imported(environment)["torch"]
    environment.pip("install", f"fp8gemm[test] @ {environment.wheel.as_uri()}", environment.torch)
    if imported(environment)["torch"] != before:
        raise Failed(f"expected torch {before} to stay, got {imported(environment)['torch']}")
    with tarfile.open(environment.sdist) as archive:
        archive.extractall(environment.home / "unpacked", filter="data")
    (tree,) = (environment.home / "unpacked").iterdir()
    (package,) = (environment.home / "venv").glob("lib/python*/site-packages/fp8gemm")
    for name, installed in (("fp8gemm", package), ("include", package / "include")):
        shutil.rmtree(tree / name)
        (tree / name).symlink_to(installed)
    report = environment.home / "report.xml"
    environment.pytest(tree, ["-n", "auto", f"--junitxml={report}", *words])
    return {"words": list(words), **counted(report)}


def counted(report: Path) -> Told:
    """Numbers of tests in a JUnit report, the names of those that failed, and why others were skipped."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [each for case in cases if (each := case.find("skipped")) is not None]
    reasons = [re.sub(r"^.*?: ", "", each.get("message", "")) for each in skipped]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": len(failed),
        "skipped": len(skipped),
        "failures": sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed),
        "reasons": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
    }


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
    steps: dict[str, Callable[[Environment], Told]]
    steps = {"install": install, "import": imported, "info": info, "demo": demo, "warmup": warmup}
    if words:
        steps["tests"] = lambda environment: tests(environment, words)
    steps["other_warmup"] = other_warmup
    with tempfile.TemporaryDirectory(prefix="fp8gemm-matrix-") as home:
        asked = "torch" if torch == NEWEST else f"torch=={torch}"
        environment = Environment(Path(home), wheel.resolve(), sdist.resolve(), asked, uv)
        environment.make(interpreter[0])
        for name, step in steps.items():
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
    """The path and the full version of ``python3.12`` for "3.12", say; None if there is none that runs."""
    asked = [f"python{version}", "-c", "import platform, sys; print(sys.executable, platform.python_version())"]
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
    here = ".".join(platform.python_version_tuple()[:2])
    parser.add_argument("--python", nargs="+", default=[here], metavar="X.Y", help=f"default {here}")
    parser.add_argument(
        "--torch", nargs="+", default=[*pinned_torch()], metavar="X.Y.Z", help="or newest; default constraints.txt's"
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="DIR", help="of make dist, the default")
    parser.add_argument("--uv", action="store_true", help="install with uv, which links files, in place of pip")
    parser.add_argument(
        "--tests", nargs="*", default=[TESTS], metavar="WORD", help=f"for pytest, or none; default {TESTS}"
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
