"""pytest in a process group of its own under a time limit: a hang or a lost CUDA context ends there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """How a run of pytest ended.

    Attributes:
        code: its exit code, None if it was killed when the time was over.
        log: what it printed.
        report: what it wrote as JUnit XML; None if it did not come to that.
        seconds: from start to end.
    """

    code: int | None
    log: str
    report: ElementTree.ElementTree | None
    seconds: float


def take_interrupts() -> None:
    """What a child that is to be interrupted does first: who runs the tests in the background may ignore SIGINT, and
    children then do so too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_pytest(arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], limit_s: float) -> Run:
    """Run pytest with these arguments; kill it with all it has started when the time is over.

    Temporary files go where they are removed after a kill, too.
    """
    with tempfile.TemporaryDirectory(prefix="fp8gemm-tests-", ignore_cleanup_errors=True) as place:
        report, log = Path(place, "report.xml"), Path(place, "log")
        command = [sys.executable, "-u", "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**environment, "TMPDIR": place},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - started
        tree = ElementTree.parse(report) if code is not None and report.is_file() else None
        return Run(code, log.read_text(errors="replace"), tree, seconds)
