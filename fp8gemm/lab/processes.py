"""Other processes that compile, while this one measures or before it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

_YIELD = 10
"""Niceness of the compilers: the process that measures goes first."""


def compiling_processes(most: int) -> ProcessPoolExecutor:
    """As many as there are processors, at most ``most``.

    Raises:
        OSError, NotImplementedError: the machine forbids processes or semaphores.
    """
    return ProcessPoolExecutor(
        min(len(os.sched_getaffinity(0)), most),
        # A fork would share the state of the driver and of torch's threads.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare,
    )


def _prepare() -> None:
    os.nice(_YIELD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent that ends, and then its pool
