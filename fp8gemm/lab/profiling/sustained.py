"""A kernel under sustained load: graph replay over rotating operands, with power and clock sampled beside it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.lab.bench.graph import GraphTimer, Telemetry
from fp8gemm.lab.bench.operands import Operands
from fp8gemm.lab.bench.peers import kernel_call
from fp8gemm.lab.bench.timing import Schedule, schedule
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Problem

_MEASURE_US = 20_000.0
_SAMPLE_SECONDS = 0.05
WARM_SHARE = 0.3
"""Of the time, before measurements count: reported power is an average over about a second."""


@dataclass(frozen=True)
class Sustained:
    """Medians over the measurements of a run.

    Attributes:
        us: per call.
        spread: (slowest - fastest) / median.
        sets: operand sets that the calls rotated over.
        mhz, watts: SM clock and power of the whole board; None where the machine does not tell.
    """

    us: float
    spread: float
    sets: int
    mhz: float | None
    watts: float | None

    @property
    def joules(self) -> float | None:
        """Of one call."""
        return None if self.watts is None else self.watts * self.us * 1e-6


def schedule_of(problem: Problem, chip: Chip) -> Schedule:
    """How a problem is measured: over sets of operands that together exceed three times L2, where that is possible."""
    return schedule(problem.m, problem.n, problem.k, l2_bytes=chip.l2_bytes, measure_us=_MEASURE_US)


def operands_of(kernel: DenseKernel, generator: torch.Generator) -> Operands:
    """One set of random operands, quantised."""
    problem = kernel.problem
    return Operands.random(problem.m, problem.n, problem.k, generator)


def sustain(kernel: DenseKernel, chip: Chip, generator: torch.Generator, *, seconds: float) -> Sustained:
    """Keep the GPU busy with one kernel for so long, and measure."""
    plan = schedule_of(kernel.problem, chip)
    timer = GraphTimer([kernel_call(kernel, operands_of(kernel, generator)) for _ in range(plan.sets)], plan)
    _repeat(timer, WARM_SHARE * seconds)
    telemetry = Telemetry()
    with _sampling(telemetry):
        times = _repeat(timer, (1 - WARM_SHARE) * seconds)
    read = telemetry.medians()
    median = statistics.median(times)
    spread = (max(times) - min(times)) / median
    return Sustained(median, spread, plan.sets, read.get("sm_mhz"), read.get("watts"))


def _repeat(timer: Callable[[], float], seconds: float) -> list[float]:
    """Measurements for so long, at least one."""
    times: list[float] = []
    start = time.monotonic()
    while not times or time.monotonic() - start < seconds:
        times.append(timer())
    return times


@contextmanager
def _sampling(telemetry: Telemetry) -> Iterator[None]:
    """Inside, a thread takes samples while this one waits for the GPU."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            telemetry.sample()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
