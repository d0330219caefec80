"""What a clock is given to: turns, bursts after a pause, and load for so long that the clock has settled."""

from __future__ import annotations

import argparse
import threading
from functools import partial
from typing import Any

import pytest

from fp8gemm.cli import bench, main, tune
from fp8gemm.errors import InputError
from fp8gemm.lab.bench import graph, regimes
from fp8gemm.lab.bench.graph import GraphTimer, Rounds
from fp8gemm.lab.bench.load import Load
from fp8gemm.lab.bench.regimes import AHEAD_S, IDLE_S, SETTLE_S, SUSTAINED_S, Regime
from fp8gemm.lab.bench.timing import Schedule, measure_in_turn

CALLS, CALL_US = 40, 50.0


class Gpu:
    """A clock in microseconds, which replays of a graph and pauses of the host move on, and what happened in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.log: list[Any] = []
        monkeypatch.setattr(graph.torch.cuda, "Event", lambda enable_timing: Event(self))
        monkeypatch.setattr(graph.time, "sleep", self.pause)

    def pause(self, seconds: float) -> None:
        self.now += 1e6 * seconds
        self.log.append(("idle", seconds))

    def replay(self) -> None:
        self.now += CALLS * CALL_US
        self.log.append("replay")

    def timer(self) -> GraphTimer:
        made = GraphTimer.__new__(GraphTimer)  # without a capture
        made._graph, made._schedule, made._us = self, Schedule(2, CALLS, 3), None
        return made


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self) -> None:
        self.at = self.gpu.now
        self.gpu.log.append("event")

    def synchronize(self) -> None:
        self.gpu.log.append("done")

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) / 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_a_turn_is_one_replay_ahead_and_those_of_the_schedule(gpu: Gpu) -> None:
    assert gpu.timer()() == CALL_US
    assert gpu.log == ["replay", "event", *["replay"] * 3, "event", "done", "done"]


def test_a_burst_comes_after_a_pause_and_is_one_replay_behind_another(gpu: Gpu) -> None:
    assert gpu.timer().alone(Regime.BURST, lambda: gpu.log.append("sampled")) == CALL_US
    assert gpu.log == [("idle", IDLE_S), "replay", "event", "replay", "event", "done", "sampled", "done"]


def test_of_sustained_load_a_period_counts_and_not_what_is_ahead(gpu: Gpu) -> None:
    timer = gpu.timer()
    timer.alone(Regime.SUSTAINED)
    gpu.log.clear()
    began = gpu.now
    assert timer.alone(Regime.SUSTAINED, lambda: gpu.log.append("sampled")) == CALL_US
    ahead, timed = (round(seconds * 1e6 / (CALLS * CALL_US)) for seconds in (AHEAD_S, SUSTAINED_S))
    assert gpu.log == [*["replay"] * ahead, "event", *["replay"] * timed, "event", "done", "sampled", "done"]
    assert gpu.now - began == pytest.approx(1e6 * (AHEAD_S + SUSTAINED_S), rel=0.02)


class Timer:
    """Takes as long as its regime says; alone, it has its own clock sampled."""

    us = {Regime.TURN: 3.0, Regime.BURST: 1.0, Regime.SUSTAINED: 2.0}

    def __init__(self) -> None:
        self.runs: list[Regime] = []

    def __call__(self) -> float:
        self.runs.append(Regime.TURN)
        return self.us[Regime.TURN]

    def alone(self, regime: Regime, meanwhile: Any) -> float:
        self.runs.append(regime)
        meanwhile()
        return self.us[regime]


class Settled(Load):
    """Is at work, and has been for long; notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def take(self) -> float:
        self.calls.append("take")
        return 0.0

    def keep(self) -> None:
        self.calls.append("keep")

    def end(self) -> None:
        self.calls.append("end")


def test_each_regime_has_its_figures_from_one_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph.torch.cuda, "clock_rate", lambda index: 1500)
    monkeypatch.setattr(graph.torch.cuda, "power_draw", lambda index: 600_000)
    monkeypatch.setattr(graph.torch.cuda, "temperature", lambda index: 55)
    timer, made = Timer(), []

    def make() -> Timer:
        made.append(timer)
        return timer

    def broken() -> Timer:
        raise RuntimeError("no kernel")

    load = Settled()
    rounds = Rounds(warm_seconds=0, regimes=(*Regime, Regime.BURST), load=load)
    found = list(rounds.measure_each({"a": make, "b": broken}, 1))  # type: ignore[dict-item]
    assert load.calls == ["end", "end", "take", "keep"]
    assert [(each.regime, each.us) for each in found] == [(regime, {"a": us}) for regime, us in Timer.us.items()]
    assert made == [timer] and timer.runs == [regime for regime in Regime for _ in range(regime.rounds)]
    assert all(each.failed == {"b": "RuntimeError: no kernel"} for each in found)
    assert [each.sm_mhz for each in found] == [1500, {"a": 1500}, {"a": 1500}]
    assert [each.circumstances()["watts"] for each in found] == [600.0, {"a": 600.0}, {"a": 600.0}]
    assert [each.circumstances()["celsius"] for each in found] == [55, {"a": 55}, {"a": 55}]
    assert [each.circumstances().get("samples") for each in found] == [
        None if regime is Regime.TURN else {"a": regime.rounds * [us]} for regime, us in Timer.us.items()
    ]
    assert [each.at("512x8x16") for each in found] == ["512x8x16", "512x8x16 burst", "512x8x16 sustained"]
    few, many = ([each.regime for each in Rounds(rounds=1, load=load).measure_each({"a": make}, m)] for m in (511, 512))  # type: ignore[dict-item]
    assert (few, many) == ([Regime.TURN], [Regime.BURST, Regime.SUSTAINED])


def test_what_cannot_be_read_of_the_chip_is_missing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(index: int) -> int:
        asked.append(index)
        raise RuntimeError("not supported")

    asked: list[int] = []
    told = iter([1500, 1400, 1450])
    monkeypatch.setattr(graph.torch.cuda, "clock_rate", lambda index: next(told))
    monkeypatch.setattr(graph.torch.cuda, "power_draw", lambda index: 600_000)
    monkeypatch.setattr(graph.torch.cuda, "temperature", refused)
    telemetry = graph.Telemetry()
    assert telemetry.medians() == {}
    for _ in range(3):
        telemetry.sample()
    assert telemetry.medians() == {"sm_mhz": 1450, "watts": 600} and telemetry.medians(2)["sm_mhz"] == 1425
    assert asked == [0]


def test_behind_idleness_rounds_are_discarded_until_the_clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([1.0, 2.0, 3.0, 5.0])

    class Unsettled(Settled):
        def take(self) -> float:
            return 0.0 if self.calls else 0.01

    load, now = Unsettled(), 0.0

    def timer() -> float:
        nonlocal now
        now += 0.006
        return next(told)

    # NOTE: Not by the machine's own clock: one that is busy takes longer to do nothing.
    monkeypatch.setattr(graph, "measure_in_turn", partial(measure_in_turn, clock=lambda: now))
    assert graph.measure_alone({"a": timer}, Regime.SUSTAINED, load, rounds=1).us == {"a": 3.0}
    assert graph.measure_alone({"a": timer}, Regime.SUSTAINED, load, rounds=1).us == {"a": 5.0}
    assert load.calls == ["keep", "keep"]


class Work:
    """Counts how often it has begun, ended and been left, by which thread; may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.began, self.ended, self.error = threading.Event(), 0, error
        self.left: list[tuple[int, threading.Thread]] = []

    def leave(self) -> None:
        self.left.append((self.ended, threading.current_thread()))

    def run(self, stop: threading.Event) -> None:
        self.began.set()
        if self.error is not None:
            raise self.error
        assert stop.wait(10)
        self.ended += 1


def test_load_lasts_from_one_measurement_to_the_next() -> None:
    now, work = 100.0, Work()
    with Load(work, clock=lambda: now) as load:
        assert load.take() == SETTLE_S and not work.left  # the chip was idle
        now += 0.5
        load.keep()
        load.keep()
        assert work.began.wait(10) and work.ended == 0
        assert load.take() == SETTLE_S - 0.5 and work.ended == 1  # what is measured runs alone
        now += SETTLE_S
        assert load.take() == 0.0
        load.end()
        assert load.take() == SETTLE_S
        load.keep()
    me = threading.current_thread()
    assert work.left == [(1, me), (2, me)]  # each time once, behind the work, where the measurement will be
    assert work.ended == 2 and not [each for each in threading.enumerate() if each.name == "fp8gemm-load"]


def test_what_ends_the_load_is_told_to_who_measures_next() -> None:
    work = Work(RuntimeError("lost"))
    load = Load(work)
    load.keep()
    assert work.began.wait(10)
    with pytest.raises(RuntimeError, match="lost"):
        load.take()
    assert load.take() == pytest.approx(SETTLE_S, abs=0.1)
    assert not work.left  # a GPU that has failed would fail again, and hide why


def test_names_and_what_is_said_of_them() -> None:
    with pytest.raises(InputError, match="expected turn or burst or sustained, got 'idle'"):
        regimes.parse_regime("idle")
    assert regimes.method([Regime.TURN], 3) == "peers in turn in an order drawn for each round, median of 3"
    said = regimes.method([Regime.BURST, Regime.SUSTAINED], None)
    assert said.startswith("burst: each alone, 40 ms idle,")
    assert "median of 7; sustained: each alone, 250 ms of graphs, then 860 ms" in said


@pytest.mark.parametrize("words", [["bench", "--regime", "idle"], ["tune", "--regime", "turn,burst"]], ids=" ".join)
def test_commands_refuse_what_is_none(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == 2 and "expected turn or burst or sustained" in capsys.readouterr().err


def test_what_is_measured_in_turn_alone_takes_no_other() -> None:
    for mode in ("--host", "--quantize"):
        parser = argparse.ArgumentParser()
        bench.add_arguments(parser)
        with pytest.raises(InputError, match=f"expected no --regime beside {mode}"):
            bench.check_options(parser.parse_args([mode, "--regime", "burst"]))
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    assert (
        parser.parse_args([]).regime is Regime.TURN and parser.parse_args(["--regime", "burst"]).regime is Regime.BURST
    )
