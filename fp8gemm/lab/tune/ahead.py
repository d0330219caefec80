"""Kernels compiled ahead, by other processes, while this one measures.

Threads would do for the compiler, but not for the clock: replays of a graph must reach the GPU without a gap, and a
thread that holds the interpreter for milliseconds makes one. What a process compiles, this one finds on disk; where no
cache directory can be written, it compiles for itself, shape by shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fp8gemm import settings
from fp8gemm.errors import Fp8GemmError
from fp8gemm.jit.build import build
from fp8gemm.jit.parallel import build_many
from fp8gemm.jit.request import KernelRequest
from fp8gemm.lab.processes import compiling_processes


class Ahead:
    """A queue of kernels that are compiled in the order in which they are asked for, all processors at work.

    Args:
        requests: which kernels, those needed first in front; each is compiled once.
    """

    def __init__(self, requests: Iterable[KernelRequest]) -> None:
        now, wanted = settings.current(), list(dict.fromkeys(requests))
        self._futures: dict[KernelRequest, Future[None]] = {}
        self._pool: ProcessPoolExecutor | None = None
        if now.jit != "compile" or not now.cache_dirs or not wanted:
            return
        with suppress(OSError, NotImplementedError):  # a machine that forbids processes or semaphores can measure still
            self._pool = compiling_processes(len(wanted))
            for request in wanted:
                self._futures[request] = self._pool.submit(_compile, request, now.cache_dirs, now.trusted_dirs)

    def wait(self, requests: Sequence[KernelRequest]) -> None:
        """Until these kernels are ready, or as ready as they get: an error is left to whoever loads the kernel."""
        for request in requests:
            if request in self._futures:
                with suppress(Exception):  # NOTE: a process may die, too; what it left out is compiled below
                    self._futures[request].result()
        with suppress(Fp8GemmError):
            build_many(requests)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _compile(request: KernelRequest, cache_dirs: tuple[Path, ...], trusted_dirs: tuple[Path, ...]) -> None:
    with settings.scope(cache_dirs=cache_dirs, trusted_dirs=trusted_dirs, jit="compile"):
        build(request)
