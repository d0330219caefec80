"""Standard output and error of a command: closed, full, or of an encoding that lacks what is printed."""

from __future__ import annotations

import os
import re
import sys

from fp8gemm.errors import InputError

_VERY_LONG, _END = re.compile(r"\S{513,}"), 40


def prepare_streams() -> None:
    """Make every text printable, with a backslash where the encoding lacks a character, and every stream a stream.

    Raises:
        InputError: standard output is closed.
    """
    # Python has None for a stream whose descriptor was closed; print() then writes nothing, or to another stream.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise InputError("expected a standard output to print to; it is closed")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what replaces a stream may have no encoding
            stream.reconfigure(errors="backslashreplace")


def drained() -> bool:
    """Whether standard output took what was written to it; if not it takes, and loses, all from now on.

    NOTE: what could not be written would be written again when the process ends, which fails again.
    """
    if sys.stdout is None:
        return False
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def clipped(message: str) -> str:
    """A message with the middle of very long words left out: others may have given them."""
    return _VERY_LONG.sub(lambda word: f"{word[0][:_END]}...{word[0][-_END:]}", message)
