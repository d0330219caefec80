"""Work for the GPU while nothing is measured, so that its clock has settled when something is."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from fp8gemm.lab.bench.operands import normal
from fp8gemm.lab.bench.regimes import SETTLE_S


class Work(Protocol):
    """What a load consists of."""

    def run(self, stop: threading.Event) -> None:
        """Keep the GPU at work until ``stop`` is set."""

    def leave(self) -> None:
        """Called in the thread and stream that measure, once ``run`` has ended without an error: nothing of it must
        outlast it."""


_SIZE, _CALLS = 4096, 50
"""Of the products, in bfloat16, and how many are queued at once: about 10 ms."""


class Load:
    """Load on GPU 0 that lasts from one measurement under sustained load to the next.

    What is measured is load too, and nothing else must run then: a measurement takes the GPU over, and has it kept at
    work afterwards, while the next one is prepared.

    Args:
        work: None for products in bfloat16.
        clock: seconds.
    """

    def __init__(self, work: Work | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._clock = work or _Products(), clock
        self._since: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def take(self) -> float:
        """Stop, and say for how many seconds the GPU must still be under load before its clock has settled.

        Raises:
            Exception: whatever has ended the work before.
        """
        self._join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._since is None:
            self._since = self._clock()
        return max(self._since + SETTLE_S - self._clock(), 0.0)

    def keep(self) -> None:
        """Work until somebody takes the GPU over."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="fp8gemm-load", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop; the GPU may be idle from now on."""
        self._join()
        self._since = None

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def _join(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            if self._error is None:
                self._work.leave()

    def _run(self) -> None:
        try:
            self._work.run(self._stop)
        except BaseException as error:  # NOTE: told to whoever measures next, in that thread
            self._error = error


class _Products:
    """Products that need as much power as the chip may have. Their operands and stream are made once."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._out: Tensor | None = None

    def run(self, stop: threading.Event) -> None:
        """Two lots of products are in flight, so that there is no gap between them."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(0)
            with torch.cuda.stream(self._stream):
                generator = torch.Generator("cuda:0").manual_seed(0)
                self._operands = [normal(generator, _SIZE, _SIZE) for _ in range(2)]
                self._out = torch.empty(_SIZE, _SIZE, dtype=torch.bfloat16, device="cuda:0")
        queued: deque[torch.cuda.Event] = deque()
        with torch.cuda.stream(self._stream):
            while not stop.is_set():
                for _ in range(_CALLS):
                    torch.mm(*self._operands, out=self._out)
                queued.append(torch.cuda.Event())
                queued[-1].record()
                if len(queued) > 2:
                    queued.popleft().synchronize()
        self._stream.synchronize()

    def leave(self) -> None:
        """Launch something ordinary on every SM.

        Where operands and graphs are made beside this load, a quarter of the SMs, others each time, are mostly left
        in a state in which a tile whose K is 512 takes the slowest of them 8 to 14 % longer, and 3 to 5 % where it is
        1536, at the clock of the rest; and products are as slow as the slowest SM (H200, 2026-12-01). Replays of
        graphs keep that for seconds, and so does a pause. An ordinary launch of another kind, as there is between the
        products of a model, has ended it each time (docs/tuning.md, "What limits prefill").
        """
        if self._out is not None:
            self._out.zero_()
