"""Runs the command line on what somebody made to break it, and says what that cost."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MOST_MEMORY = 8 << 30
"""Bytes of address space: what takes memory without end must not take this machine's."""

MEASURED = """
import atexit, pathlib
atexit.register(lambda: pathlib.Path({path!r}).write_text(pathlib.Path("/proc/self/status").read_text()))
"""
"""What the system counts for a child begins with its parent's memory; this is the process's own."""

NO_TORCH = "import sys\nsys.modules['torch'] = None\n"


class Outcome(NamedTuple):
    """What a command did.

    Attributes:
        code: its exit code.
        out, err: what it printed.
        megabytes: its memory at the most.
        seconds: of its life.
    """

    code: int
    out: str
    err: str
    megabytes: float
    seconds: float

    @property
    def line(self) -> str:
        """The one line that it said on standard error; fails if there are more, or none."""
        (line,) = self.err.splitlines()
        return line


def attacked(
    *words: str,
    shell: str = "",
    cwd: Path | None = None,
    startup: str = "",
    seconds: float = 60,
    prepare: Callable[[], None] | None = None,
    **variables: str,
) -> Outcome:
    """Run ``fp8gemm`` with these words.

    Args:
        words: the command's.
        shell: redirections, as ``>/dev/full``.
        cwd: where, if not here.
        startup: Python that runs before anything else.
        seconds: after which it is killed, which is an error.
        prepare: is called where the command starts, before it.
        variables: of the environment.
    """
    with tempfile.TemporaryDirectory() as temporary:
        first, out, err = (Path(temporary, name) for name in ("first", "out", "err"))
        first.mkdir()
        (first / "sitecustomize.py").write_text(MEASURED.format(path=str(first / "status")) + startup)
        # Absolute, because Python itself does not start with a relative one where there is no working directory.
        known = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        search = os.pathsep.join([str(first), str(ROOT), *known])
        environment = {**os.environ, "PYTHONPATH": search, "CUDA_VISIBLE_DEVICES": "", **variables}
        command = [sys.executable, "-m", "fp8gemm", *words]
        if shell:
            command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            if prepare is not None:
                prepare()

        started = time.monotonic()
        with out.open("wb") as standard_output, err.open("wb") as standard_error:
            done = subprocess.run(
                command,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=standard_output,
                stderr=standard_error,
                preexec_fn=limited,
                timeout=seconds,
            )
        assert (first / "status").exists(), (out.read_text(), err.read_text())
        peak = re.search(r"VmHWM:\s*([0-9]+) kB", (first / "status").read_text())
        assert peak is not None
        printed, said = (stream.read_text(errors="replace") for stream in (out, err))
        return Outcome(done.returncode, printed, said, int(peak[1]) / 1024, time.monotonic() - started)
