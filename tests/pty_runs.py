"""Commands of tests on a terminal: a pseudo-terminal of a width, for standard output, standard error, or both."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.children import environment

COLOURED = re.compile(r"\x1b\[\d+m")


@dataclass(frozen=True)
class Shown:
    """What a command said: on the terminal, and through a pipe what did not go there."""

    code: int
    terminal: str
    piped: str = ""

    @property
    def lines(self) -> list[str]:
        """Those of the terminal, without styles and bars of progress."""
        text = COLOURED.sub("", self.terminal).replace("\r\n", "\n")
        return [line.rpartition("\r")[2] for line in text.split("\n")]


def on_terminal(words: Sequence[str], *, columns: int = 80, errors_alone: bool = False, **changes: str) -> Shown:
    """Run a command whose standard output and error are a terminal, or whose standard error alone is one."""
    variables = environment(**{"TERM": "xterm", **changes})
    for name in {"NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS"} - changes.keys():
        variables.pop(name, None)
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    stdout = subprocess.PIPE if errors_alone else there
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=there, env=variables) as process:
        os.close(there)
        seen = b""
        with suppress(OSError):  # of a terminal whose other side is closed
            while part := os.read(here, 65536):
                seen += part
        piped = process.stdout.read() if process.stdout else b""
    os.close(here)
    return Shown(process.returncode, seen.decode(), piped.decode())


def fp8gemm(*words: str) -> list[str]:
    """The command line of this checkout."""
    return [sys.executable, "-m", "fp8gemm", *words]
