"""Exit codes, the same of every command and script."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command that has ended says to whoever started it."""

    DONE = 0
    FAILED = 1  # a check failed, or there was an error, which is told on standard error
    WORDS = 2  # the command line itself is wrong
    NO_GPU = 3  # a Hopper GPU is needed, and there is none to use
    INCOMPLETE = 4  # of a warmup: not all that was asked for lies, verified, in the cache directories
    INTERRUPTED = 130  # what a shell reports for a command that SIGINT ended
