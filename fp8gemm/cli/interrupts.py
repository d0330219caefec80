"""Ctrl-C while modules are loaded: a quiet end, where half-loaded modules would make a traceback of it, or anything."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fp8gemm.cli.exits import Exit


@contextmanager
def loading() -> Iterator[None]:
    """Around what loads modules and has done nothing yet: SIGINT ends the process at once.

    NOTE: a KeyboardInterrupt would not do. Modules written in C and C++ swallow it, or turn it into errors of their
    own. A handler of somebody else stays, and so does one that ignores the signal.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, lambda *_: os._exit(Exit.INTERRUPTED))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
