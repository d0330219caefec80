"""How long a call takes, whatever else this machine does: beside a loop whose time on a quiet machine is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

LOOP_MS = 14.0
"""What `_loop` takes one core of a quiet Xeon of 2023, under Python 3.11."""


def quiet_ms(calls: Iterable[Callable[[], object]]) -> float:
    """What the quickest of these takes on a quiet machine, in ms.

    It is counted in CPU time, which others on a machine stretch too, since they share caches and halves of cores. So
    each call is held against the loop that ran just before.
    """
    return min(LOOP_MS * _seconds(call) / _seconds(_loop) for call in calls)


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def _loop() -> float:
    """Calls and sums of floats, as a choice by cost is made of."""
    most = 0.0
    for rows in range(1, 50_001):
        most = max(most, _share(rows, 128))
    return most


def _share(rows: int, tile: int) -> float:
    return -(-rows // tile) * min(rows, tile) / (rows + tile)
