"""Peers measured in rounds, so that all of them see the same chip. Nothing here touches a GPU."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fp8gemm.lab.bench.regimes import Regime

T = TypeVar("T")

Timer = Callable[[], float]
"""Takes one measurement and returns microseconds per call."""

L2_MULTIPLE = 3
MIN_SETS, MAX_SETS = 2, 256
MAX_CALLS_PER_GRAPH = 400
GRAPH_US = 2_000.0

# Below any Hopper GPU's floor for one kernel; at or above what one sustains in FP8 and reads from memory.
_FLOOR_US, _FLOPS_PER_US, _BYTES_PER_US = 5.0, 0.9e9, 4e6


Clock = float | Mapping[str, float] | None


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What one round-robin gave.

    Attributes:
        us: median microseconds per call, by peer, of those that finished every round.
        spread: (slowest - fastest) / median over the rounds, by peer.
        failed: reason, by peer, of those that have no time.
        regime: how they shared the chip's time.
        sm_mhz, watts, celsius: medians over the rounds, None where the machine does not tell; by peer where each was
            alone. Power is what the machine says, an average over up to a second.
        samples: what ``us`` are medians of, by peer, in the order of the rounds.
    """

    us: Mapping[str, float]
    spread: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    regime: Regime = Regime.TURN
    sm_mhz: Clock = None
    watts: Clock = None
    celsius: Clock = None
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def only(self, peers: Sequence[str]) -> Timings:
        """The same with the figures of these peers alone, of those that have some."""

        def of(figures: Mapping[str, T]) -> dict[str, T]:
            return {peer: figures[peer] for peer in peers if peer in figures}

        return replace(self, us=of(self.us), spread=of(self.spread), samples=of(self.samples))

    def time_ratio(self, over: str, under: str) -> float | None:
        """One peer's time over another's, which is the speed of ``under`` relative to ``over``. None unless both were
        timed."""
        return self.us[over] / self.us[under] if {over, under} <= self.us.keys() else None

    def at(self, what: object) -> str:
        """What was measured, with the regime where peers were alone."""
        return str(what) if self.regime is Regime.TURN else f"{what} {self.regime.value}"

    def circumstances(self) -> dict[str, Any]:
        """How a row of a file ends: regime, clock, power and heat; each sample of peers that were alone, which under
        load may be at two levels; and what failed, if anything did."""
        row: dict[str, Any] = {"regime": self.regime.value, "sm_mhz": self.sm_mhz, "watts": self.watts}
        row["celsius"] = self.celsius
        if self.regime is not Regime.TURN:
            row["samples"] = {name: [round(us, 2) for us in each] for name, each in self.samples.items()}
        return row | ({"failed": dict(self.failed)} if self.failed else {})


def rounded(values: Mapping[str, float], digits: int) -> dict[str, float]:
    """For people and for later comparison."""
    return {name: round(value, digits) for name, value in values.items()}


@dataclass(frozen=True)
class Schedule:
    """How one shape is measured.

    Attributes:
        sets: operand sets that the calls rotate over.
        calls: calls in one graph, a multiple of ``sets``.
        replays: timed replays of that graph in one measurement.
    """

    sets: int
    calls: int
    replays: int


def schedule(m: int, n: int, k: int, *, l2_bytes: int, measure_us: float) -> Schedule:
    """A schedule whose FP8 operands exceed three times L2, where ``MAX_SETS`` sets of them can, and whose measurement
    takes about ``measure_us`` or one replay, whichever is longer."""
    set_bytes = (m + n) * k
    us = expected_us(2 * m * n * k, set_bytes + 2 * m * n)
    return schedule_sets(set_count(set_bytes, l2_bytes), us, measure_us=measure_us)


def schedule_bytes(moved: int, *, l2_bytes: int, measure_us: float) -> Schedule:
    """The same for a call that reads and writes so many bytes, which one operand set is then."""
    return schedule_sets(set_count(moved, l2_bytes), expected_us(0, moved), measure_us=measure_us)


def set_count(set_bytes: int, l2_bytes: int) -> int:
    """Operand sets of so many bytes that exceed three times L2, where ``MAX_SETS`` of them can."""
    return min(max(L2_MULTIPLE * l2_bytes // set_bytes + 1, MIN_SETS), MAX_SETS)


def schedule_sets(sets: int, expected_us: float, *, measure_us: float) -> Schedule:
    """A schedule over so many operand sets, of calls that are expected to take so long."""
    expected_us = max(_FLOOR_US, expected_us)
    wanted = min(GRAPH_US / expected_us, MAX_CALLS_PER_GRAPH)
    calls = sets * max(math.ceil(wanted / sets), 1)
    return Schedule(sets, calls, max(round(measure_us / (calls * expected_us)), 1))


def expected_us(flops: float, moved: float) -> float:
    """Microseconds that so many floating-point operations or bytes take at least."""
    return max(flops / _FLOPS_PER_US, moved / _BYTES_PER_US)


def measure_in_turn(
    timers: Mapping[str, Timer],
    *,
    rounds: int,
    warm_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    order: random.Random | None = None,
    after_round: Callable[[], None] = lambda: None,
) -> Timings:
    """Run whole rounds, discarded until ``warm_seconds`` have passed and then ``rounds`` that count.

    Each round goes through the peers in an order of its own, drawn by ``order``. What a GPU draws sets its clock 20 to
    60 ms later (H200, 2026-11-21), so in a fixed order the peer behind frugal ones would always run the faster for it.
    A timer that raises is dropped, with the reason, and the others go on.
    """
    alive, failed = dict(timers), {}
    order = random.Random() if order is None else order
    samples: dict[str, list[float]] = {name: [] for name in timers}

    def one_round() -> dict[str, float]:
        results = {}
        for name in order.sample(list(alive), len(alive)):
            try:
                results[name] = alive[name]()
            except Exception as error:  # NOTE: a peer may raise anything, and must not end the others' run
                failed[name] = describe(error)
                del alive[name]
        after_round()
        return results

    start = clock()
    while alive and clock() - start < warm_seconds:
        one_round()
    for _ in range(rounds):
        for name, us in one_round().items():
            samples[name].append(us)

    medians = {name: statistics.median(samples[name]) for name in alive}
    spread = {name: (max(samples[name]) - min(samples[name])) / medians[name] for name in alive}
    return Timings(us=medians, spread=spread, failed=failed, samples={name: samples[name] for name in alive})


def describe(error: BaseException) -> str:
    """An error in one line: its type and the first line of its message, at most 160 characters."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
