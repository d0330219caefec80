"""One row of scripts/matrix.py: a new environment, and each step that a user of the wheel takes in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

DEMO = ("demo", "--m", "1,64", "--nk", "256x512", "--json")
WARMUP = ("warmup", "--nk", "2112x7168", "--max-m", "64", "--chip", "h200", "--calls", "layer", "--json")
# NOTE: without torch, the wheel of CUDA 13 is the one that loads where both are there.
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


def warmup(environment: Environment, name: str = "first") -> Told:
    """Kernels of one weight, into an empty directory, and which NVRTC compiled them; no torch is loaded for it."""
    directory = environment.home / f"kernels-{name}"
    told = environment.fp8gemm(*WARMUP, "--cache-dir", str(directory))
    if not told["kernels"] == told["compiled"] > 0:
        raise Failed(f"expected every kernel compiled, got {told}")
    return {"nvrtc": compiler_of(environment, directory), "kernels": told["kernels"]}


def compiler_of(environment: Environment, directory: Path) -> str:
    """The version of the NVRTC that compiled all kernels of a directory."""
    (listed,) = environment.fp8gemm("cache", "ls", str(directory), "--json")["directories"]
    (version,) = {kernel["nvrtc_version"] for kernel in listed["kernels"]}
    return str(version)


def other_warmup(environment: Environment) -> Told:
    """The same after the NVRTC of the other CUDA was installed, or that of CUDA 13 removed."""
    before = major(compiler_of(environment, environment.home / "kernels-first"))
    environment.pip(*OTHER_NVRTC[before])
    told = warmup(environment, "other")
    if major(told["nvrtc"]) == before:
        raise Failed(f"expected the NVRTC of another CUDA than {before}, got {told['nvrtc']}")
    return told


def major(version: str) -> int:
    """12 of "12.9"."""
    return int(version.partition(".")[0])


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


STEPS: dict[str, Callable[[Environment], Told]]
STEPS = {"install": install, "import": imported, "info": info, "demo": demo, "warmup": warmup}
"""In the order in which they are taken."""
LAST: dict[str, Callable[[Environment], Told]] = {"other_warmup": other_warmup}
"""It may take the NVRTC away that torch wants, which then cannot be imported."""
