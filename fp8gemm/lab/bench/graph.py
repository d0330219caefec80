"""Device side of a measurement: a CUDA graph of many calls over rotating operands, timed with events."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from fp8gemm.driver.device import DeviceInfo
from fp8gemm.errors import Fp8GemmError
from fp8gemm.lab.bench.load import Load
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Operands, relative_error
from fp8gemm.lab.bench.peers import Peer
from fp8gemm.lab.bench.regimes import AHEAD_S, IDLE_S, SUSTAINED_S, Regime, default_regimes
from fp8gemm.lab.bench.report import Row, Shape
from fp8gemm.lab.bench.suite import Suite
from fp8gemm.lab.bench.timing import Schedule, Timer, Timings, describe, measure_in_turn, schedule

REWARM_SECONDS = 0.2
"""Load before every shape but the first: the chip cools while the next operands are made."""


class WrongResultError(Fp8GemmError, RuntimeError):
    """A peer's result is not the product of its operands, so its speed means nothing."""


@cache
def capture_stream() -> torch.cuda.Stream:
    """The one stream that graphs are captured on. Torch hands out 32 by turns, and so would come round to that of the
    load between measurements."""
    return torch.cuda.Stream()


class GraphTimer:
    """Captures ``schedule.calls`` calls, going round the given ones, and replays them against the clock.

    Args:
        calls: one call per operand set.
        schedule: how many calls one graph holds and how often it is replayed for one measurement.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], schedule: Schedule) -> None:
        self._schedule = schedule
        self._us: float | None = None
        self._calls = list(calls)  # they own the tensors that the graph reads
        stream = capture_stream()
        stream.wait_stream(torch.cuda.current_stream())
        # Compiling, loading, and allocating a workspace for this stream are forbidden or lost inside a capture.
        with torch.cuda.stream(stream):
            outputs = [call() for call in self._calls]
        torch.cuda.synchronize()

        self._graph = torch.cuda.CUDAGraph()
        # NOTE: the load between measurements goes on in another thread.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            for index in range(schedule.calls):
                # An output is held until its slot comes round again: results rotate through memory as operands do.
                slot = index % len(self._calls)
                outputs[slot] = self._calls[slot]()
        torch.cuda.synchronize()

    def replayed(self, replays: int) -> GraphTimer:
        """The same graph, replayed so often for one measurement."""
        other = copy.copy(self)
        other._schedule = replace(self._schedule, replays=replays)
        return other

    def __call__(self) -> float:
        """One measurement: microseconds per call."""
        return self._timed(1, self._schedule.replays)

    def alone(self, regime: Regime, meanwhile: Callable[[], None] = lambda: None) -> float:
        """One measurement in a regime where nothing else runs; ``meanwhile`` is called while the GPU is at work."""
        if regime is Regime.BURST:
            time.sleep(IDLE_S)
            return self._timed(1, 1, meanwhile)
        if self._us is None:
            self._us = self()
        of_graph = self._us * self._schedule.calls
        ahead, timed = (max(round(1e6 * seconds / of_graph), 1) for seconds in (AHEAD_S, SUSTAINED_S))
        return self._timed(ahead, timed, meanwhile)

    def _timed(self, ahead: int, replays: int, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Microseconds per call of so many replays, behind some that are not timed."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # NOTE: while these run, the host queues those that are timed, so that none waits for its launch.
        for _ in range(ahead):
            self._graph.replay()
        start.record()
        for _ in range(replays):
            self._graph.replay()
        end.record()
        start.synchronize()  # the clock is still that of whatever ran before, until what is not timed is done
        meanwhile()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / (replays * self._schedule.calls)


def prepare_timer(peer: Peer, operands: Sequence[Operands], schedule: Schedule) -> GraphTimer:
    """Prepare every operand set for the peer, check its result on the first, and capture its graph.

    Raises:
        WrongResultError: the result is off by more than quantisation explains.
        Exception: whatever the peer itself raises.
    """
    calls = [peer.prepare(each) for each in operands]
    if peer.expected is not None:
        operands[0].output.fill_(math.nan)  # it may hold what the peer before wrote
        check_result(calls[0](), peer.expected(operands[0]), "the bfloat16 product")
    return GraphTimer(calls, schedule)


def check_result(result: Tensor, expected: Tensor, name: str, limit: float = MAX_RELATIVE_ERROR) -> None:
    """Compare a result with another one, by default the unquantised one, which the message calls ``name``.

    Raises:
        WrongResultError: it is off by more than the limit.
    """
    error = relative_error(result, expected)
    if not error <= limit:  # a NaN fails too
        raise WrongResultError(
            f"the result differs from {name} by {error:.3g} (relative Frobenius norm), expected at most {limit}"
        )


_READINGS: Mapping[str, Callable[[], float]] = {
    "sm_mhz": lambda: torch.cuda.clock_rate(0),
    "watts": lambda: torch.cuda.power_draw(0) / 1e3,
    "celsius": lambda: torch.cuda.temperature(0),
}
"""What is asked of the chip, by the name that `Timings` has for it."""


class Telemetry:
    """Samples of SM clock, power and heat, as far as the machine tells: they need NVIDIA's management library."""

    def __init__(self) -> None:
        self._asked = dict(_READINGS)
        self._read: dict[str, list[float]] = {}

    def sample(self) -> None:
        """Take one sample of each; from what cannot be read none, and none again."""
        for name, read in list(self._asked.items()):
            try:
                value = read()
            except Exception:  # NOTE: the library may be missing, too old or forbidden here; the times stand without it
                del self._asked[name]
            else:
                self._read.setdefault(name, []).append(value)

    def medians(self, last: int = 0) -> dict[str, float]:
        """Of the ``last`` samples or all, by the names of `_READINGS`; without those that could not be read."""
        return {name: round(statistics.median(values[-last:]), 1) for name, values in self._read.items()}


T = TypeVar("T", bound=Timer)


class Rounds:
    """Measures whatever can be prepared: in turn, after a load that warms the chip up, or each alone.

    Args:
        rounds: measurements of each; None for the regime's own number.
        warm_seconds: load before the first shape's turns.
        regimes: that each shape is measured in where it can be alone; None for `default_regimes` of its rows.
        load: between the shapes that are measured under sustained load.
    """

    def __init__(
        self,
        *,
        rounds: int | None = None,
        warm_seconds: float = 0.0,
        regimes: Sequence[Regime] | None = None,
        load: Load,
    ) -> None:
        self._rounds, self._warm_seconds, self._load = rounds, warm_seconds, load
        self._regimes = None if regimes is None else tuple(dict.fromkeys(regimes))

    def measure(self, prepare: Mapping[str, Callable[[], Timer]]) -> Timings:
        """Prepare a timer for each name, then measure all of them in turn; one that raises is dropped, with the
        reason."""
        timers, failed = _prepared(prepare)
        timings = self._in_turn(timers)
        return replace(timings, failed={**failed, **timings.failed})

    def measure_each(self, prepare: Mapping[str, Callable[[], GraphTimer]], m: int) -> Iterator[Timings]:
        """The same in every regime that products of ``m`` rows are measured in, one after the other."""
        timers, failed = _prepared(prepare)
        for regime in default_regimes(m) if self._regimes is None else self._regimes:
            timings = self._in_turn(timers) if regime is Regime.TURN else self._alone(timers, regime)
            yield replace(timings, failed={**failed, **timings.failed})

    def _in_turn(self, timers: Mapping[str, Timer]) -> Timings:
        self._load.end()
        telemetry = Telemetry()
        rounds = self._rounds or Regime.TURN.rounds
        timings = measure_in_turn(timers, rounds=rounds, warm_seconds=self._warm_seconds, after_round=telemetry.sample)
        self._warm_seconds = min(self._warm_seconds, REWARM_SECONDS)
        read: dict[str, Any] = {**telemetry.medians()}
        return replace(timings, **read)

    def _alone(self, timers: Mapping[str, GraphTimer], regime: Regime) -> Timings:
        telemetry = {name: Telemetry() for name in timers}
        alone = {name: partial(timer.alone, regime, telemetry[name].sample) for name, timer in timers.items()}
        rounds = self._rounds or regime.rounds
        timings = measure_alone(alone, regime, self._load, rounds=rounds)
        found = {name: telemetry[name].medians(rounds) for name in timings.us}
        read: dict[str, Any] = {
            what: {name: each[what] for name, each in found.items() if what in each} or None for what in _READINGS
        }
        return replace(timings, regime=regime, **read)


def measure_alone(timers: Mapping[str, Timer], regime: Regime, load: Load, *, rounds: int) -> Timings:
    """One after the other in a regime where each is alone: under sustained load behind as much of it as settles the
    clock, and with more of it behind them."""
    if regime is not Regime.SUSTAINED:
        load.end()
        return measure_in_turn(timers, rounds=rounds)
    timings = measure_in_turn(timers, rounds=rounds, warm_seconds=load.take())
    load.keep()
    return timings


def _prepared(prepare: Mapping[str, Callable[[], T]]) -> tuple[dict[str, T], dict[str, str]]:
    """What could be made, and why the rest could not."""
    made: dict[str, T] = {}
    failed: dict[str, str] = {}
    for name, make in prepare.items():
        try:
            made[name] = make()
        except Exception as error:  # NOTE: a peer may raise anything, and must not end the others' run
            failed[name] = describe(error)
    return made, failed


class Bench:
    """Measures one shape after another on GPU 0.

    Args:
        suite: what is measured.
        device: GPU 0.
        generator: of the operands, on that GPU.
        rounds: who measures.
        measure_us: length of one measurement.
    """

    def __init__(
        self,
        suite: Suite,
        device: DeviceInfo,
        generator: torch.Generator,
        *,
        rounds: Rounds,
        measure_us: float,
    ) -> None:
        self._suite, self._device, self._generator = suite, device, generator
        self._rounds, self._measure_us = rounds, measure_us

    def measure(self, shape: Shape) -> Iterator[Row]:
        """Time every peer on one shape, all of them on the same operands: a row for each regime."""
        m, n, k = shape.m, shape.n, shape.k
        torch.cuda.empty_cache()  # the last shape's blocks rarely fit this one
        plan = schedule(m, self._suite.products * n, k, l2_bytes=self._device.l2_bytes, measure_us=self._measure_us)
        operands = [Operands.random(m, n, k, self._generator) for _ in range(plan.sets)]
        prepare = {peer.name: partial(prepare_timer, peer, operands, plan) for peer in self._suite.peers}
        for timings in self._rounds.measure_each(prepare, m):
            label = self._suite.label(operands[0]) if self._suite.ours in timings.us else ""
            yield Row(shape, config=label, sets=plan.sets, **vars(timings))
