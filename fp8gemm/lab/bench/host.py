"""What a call costs the host: Python, checks and launches, while the GPU is kept busy with something else."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle

import torch
from torch import nn

import fp8gemm
from fp8gemm.errors import Fp8GemmError
from fp8gemm.lab.bench.gates import Gate, Gates
from fp8gemm.lab.bench.graph import Rounds
from fp8gemm.lab.bench.linear import bf16_linear, fp8_layer, fp8_linear
from fp8gemm.lab.bench.operands import Operands
from fp8gemm.lab.bench.report import SIZES, Row, Shape, figure, sizes
from fp8gemm.lab.bench.timing import Timer
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.terminal.table import Column, Group, Table

CHUNKS, CALLS_PER_CHUNK = 10, 20
"""200 calls of at most three launches each: the driver queues 1024 before a launch blocks."""
BUSY_MS, MAX_TRIES = 10.0, 6
FRESH_INPUTS = 64
"""More than a layer remembers launches for."""
METHOD = (
    f"a kernel that only waits keeps the GPU busy while {CHUNKS * CALLS_PER_CHUNK} calls are queued behind it; median "
    f"over {CHUNKS} chunks of {CALLS_PER_CHUNK} calls, then over {{rounds}} rounds, peers in turn in an order drawn "
    "for each round, microseconds of the host per call, without gradients"
)

_CYCLES_PER_MS = 2_000_000  # of a clock near 2 GHz

FORWARD, LINEAR = "fp8_forward", "linear"
FRESH = "fp8_fresh"
MODULE, NN_LINEAR = "fp8_module", "nn_linear"
PLAN, GEMM, QUANTIZE = "plan", "gemm", "quantize"

Action = Callable[[], object]


class IdleGpuError(Fp8GemmError, RuntimeError):
    """The GPU ran out of work during a measurement, so that the host may have waited for it."""


class CurrentGpu:
    """torch's current device and stream, which can be kept busy."""

    def occupy(self, milliseconds: float) -> Callable[[], bool]:
        """Queue a kernel that spins for about that long; the result tells whether it is still running."""
        torch.cuda._sleep(int(milliseconds * _CYCLES_PER_MS))
        end = torch.cuda.Event()
        end.record()
        return lambda: not end.query()

    def wait(self) -> None:
        """Until nothing is queued."""
        torch.cuda.synchronize()


class HostTimer:
    """Times calls on the host's clock, behind a kernel that outlasts them.

    Args:
        call: queues work on the GPU, and does not wait for it.
        gpu: kept busy.
        clock: nanoseconds.
    """

    def __init__(self, call: Action, gpu: CurrentGpu, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._call, self._gpu, self._clock, self._busy_ms = call, gpu, clock, BUSY_MS
        for _ in range(CALLS_PER_CHUNK):  # compiles, loads, fills caches
            call()

    def __call__(self) -> float:
        """One measurement: microseconds per call, the median over the chunks.

        Raises:
            IdleGpuError: the calls outlasted every kernel that was queued ahead of them.
        """
        for _ in range(MAX_TRIES):
            self._gpu.wait()
            is_busy = self._gpu.occupy(self._busy_ms)
            us = self._chunks()
            busy_to_the_end = is_busy()
            self._gpu.wait()
            if busy_to_the_end:
                return statistics.median(us)
            self._busy_ms *= 2
        raise IdleGpuError(
            f"expected the GPU to be busy during {CHUNKS * CALLS_PER_CHUNK} calls, got one that was idle after "
            f"{self._busy_ms / 2:g} ms"
        )

    def _chunks(self) -> list[float]:
        call, clock = self._call, self._clock
        times = []
        was_enabled = gc.isenabled()
        gc.disable()  # a collection would count for the call that it happens to fall into
        try:
            for _ in range(CHUNKS):
                start = clock()
                for _ in range(CALLS_PER_CHUNK):
                    call()
                times.append((clock() - start) / 1e3 / CALLS_PER_CHUNK)
        finally:
            if was_enabled:
                gc.enable()
        return times


def _nn_linear(operands: Operands) -> Action:
    n, k = operands.w.shape
    layer = nn.Linear(k, n, bias=False, device=operands.w.device, dtype=operands.w.dtype)
    layer.weight = nn.Parameter(operands.w, requires_grad=False)
    return partial(layer, operands.x)


def _fp8_forward(operands: Operands) -> Action:
    return partial(fp8_layer(operands).forward, operands.x)


def _fp8_fresh(operands: Operands) -> Action:
    forward = fp8_layer(operands).forward
    inputs = cycle(operands.x.expand(FRESH_INPUTS, *operands.x.shape).clone().unbind())
    return lambda: forward(next(inputs))


def _plan(operands: Operands) -> Action:
    a, scales_a, b, scales_b = operands.blocks
    return partial(fp8gemm.plan(b, scales_b, max_m=a.shape[0]), a, scales_a, out=operands.output)


def _gemm(operands: Operands) -> Action:
    return partial(fp8gemm.gemm, *operands.blocks, out=operands.output)


def _quantize(operands: Operands) -> Action:
    return partial(quantize_activation, operands.x)


PREPARE: Mapping[str, tuple[str, Callable[[Operands], Action]]] = {
    FORWARD: ("fp8gemm.nn.Fp8Linear.forward, bfloat16", _fp8_forward),
    FRESH: (f"the same, its inputs at {FRESH_INPUTS} addresses in turn", _fp8_fresh),
    LINEAR: ("torch.nn.functional.linear, bfloat16", bf16_linear),
    MODULE: ("fp8gemm.nn.Fp8Linear called as a module", fp8_linear),
    NN_LINEAR: ("torch.nn.Linear called as a module, bfloat16", _nn_linear),
    PLAN: ("a plan, with out=", _plan),
    GEMM: ("fp8gemm.gemm, with out=", _gemm),
    QUANTIZE: ("fp8gemm.quantize_activation, bfloat16", _quantize),
}
"""By name: what it is, and from operands to the call that is timed."""
RATIOS = {"forward/linear": (FORWARD, LINEAR), "module/nn_linear": (MODULE, NN_LINEAR)}


class HostTable:
    """One row per shape: the host's microseconds per call, and ratios of two of them."""

    def __init__(self) -> None:
        times = tuple(Column(name, 11) for name in PREPARE)
        self._table = Table(Group(SIZES), Group(times), Group(tuple(Column(name, 16) for name in RATIOS)))
        self.header, self.remark = self._table.header, self._table.remark

    def line(self, row: Row) -> str:
        """One row; a dash where there is no time."""
        times = [figure(row.us.get(name), 2) for name in PREPARE]
        ratios = [figure(row.time_ratio(*pair), 3) for pair in RATIOS.values()]
        return self._table.line(*sizes(row.shape), *times, *ratios)


class HostBench:
    """Measures one shape after another.

    Args:
        generator: of the operands, on the GPU.
        rounds: who measures.
        gpu: kept busy.
    """

    def __init__(self, generator: torch.Generator, rounds: Rounds, gpu: CurrentGpu) -> None:
        self._generator, self._rounds, self._gpu = generator, rounds, gpu

    def measure(self, shape: Shape) -> Row:
        """Time every call of one shape, all of them on the same operands."""
        operands = Operands.random(shape.m, shape.n, shape.k, self._generator)
        with torch.no_grad():
            timings = self._rounds.measure(
                {name: partial(self._timer, make, operands) for name, (_, make) in PREPARE.items()}
            )
        return Row(shape, **vars(timings))

    def _timer(self, make: Callable[[Operands], Action], operands: Operands) -> Timer:
        return HostTimer(make(operands), self._gpu)


def _times(name: str, rows: Sequence[Row]) -> dict[str, float | None]:
    return {str(row.shape): row.us.get(name) for row in rows}


def _ratios(rows: Sequence[Row]) -> dict[str, float | None]:
    return {str(row.shape): row.time_ratio(FORWARD, LINEAR) for row in rows}


GATES = Gates(
    (
        Gate("microseconds of a plan", 6.0, partial(_times, PLAN), at_least=False),
        Gate("microseconds of gemm", 10.0, partial(_times, GEMM), at_least=False),
        Gate("Fp8Linear.forward over functional.linear", 1.2, _ratios, at_least=False),
    )
)
