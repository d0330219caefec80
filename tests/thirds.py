"""Tests that compile products of tiles, outputs and stores take a third of the kernels at a time, and those that
compile faulty versions a third of the faults.

The third of each follows from its name, and which third is taken from the commit, so that all have their turn and a
failure comes back when it is run again. ``FP8GEMM_TEST_THIRD`` names one, 0 to 2, or ``all``, as `make test-all` does.
A real network's sentences are taken in the same way.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
VARIABLE, ALL = "FP8GEMM_TEST_THIRD", "all"
CHOICES = ("0", "1", "2", ALL)


def of_commit() -> str:
    """The third whose turn it is: that of the commit, or of the day where there is no git or no repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD"]
    try:
        turn = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout, 16)
    except (OSError, subprocess.CalledProcessError, ValueError):
        turn = int(time.time()) // 86400
    return str(turn % 3)


def third_of(kernels: Iterable[T], name: Callable[[T], str]) -> list[T]:
    """Those of the third whose turn it is, in their order; all where there are fewer than three.

    Args:
        kernels: all that a test covers.
        name: tells one from another, and is the same in every run.
    """
    kernels, chosen = list(kernels), os.environ.get(VARIABLE, ALL)
    if chosen == ALL or len(kernels) < 3:
        return kernels
    # Every third in the order of their names' digests: each has its share, and none goes by what the names begin with.
    shuffled = sorted(range(len(kernels)), key=lambda index: (_digest(name(kernels[index])), index))
    return [kernels[index] for index in sorted(shuffled[int(chosen) :: 3])]


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
