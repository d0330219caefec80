"""How measurements take turns and how many calls one holds, with a fake clock and fake peers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8gemm.lab.bench import timing

L2_BYTES = 60 << 20


class FakeChip:
    """A clock that advances by what its timers 'take', and a log of who ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def timer(self, name: str, *us: float, fails_after: int | None = None) -> Callable[[], float]:
        """Gives the values of ``us`` in turn, the last one for ever; raises once it ran ``fails_after`` times."""
        runs = 0

        def measure() -> float:
            nonlocal runs
            if runs == fails_after:
                raise RuntimeError(f"{name} broke\nsecond line")
            runs += 1
            self.now += 0.25
            self.log.append(name)
            return us[min(runs, len(us)) - 1]

        return measure


def test_peers_take_turns_and_medians_are_taken() -> None:
    chip = FakeChip()
    timers = {"a": chip.timer("a", 5, 1, 3), "b": chip.timer("b", 10)}
    result = timing.measure_in_turn(timers, rounds=3, clock=chip.clock)
    assert [sorted(chip.log[first : first + 2]) for first in (0, 2, 4)] == [["a", "b"]] * 3
    assert result.us == {"a": 3, "b": 10}
    assert result.spread == {"a": pytest.approx(4 / 3), "b": 0}
    assert result.samples == {"a": [5, 1, 3], "b": [10, 10, 10]}
    only = result.only(["b", "c"])
    assert (only.us, only.spread, only.samples) == ({"b": 10}, {"b": 0}, {"b": [10, 10, 10]})
    assert result.failed == {}


def test_every_peer_comes_after_every_other_equally_often() -> None:
    chip = FakeChip()
    timers = {name: chip.timer(name, 1) for name in "abcd"}
    timing.measure_in_turn(timers, rounds=4000, clock=chip.clock, order=random.Random(7))
    rounds = ["".join(chip.log[first : first + 4]) for first in range(0, len(chip.log), 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    follows = Counter(pair for each in rounds for pair in itertools.pairwise(each))
    assert len(follows) == 12 and max(follows.values()) < 1.15 * min(follows.values())


def test_warm_rounds_do_not_count() -> None:
    chip = FakeChip()
    timers = {"a": chip.timer("a", 100, 100, 7)}
    rounds = []
    result = timing.measure_in_turn(
        timers, rounds=1, warm_seconds=0.5, clock=chip.clock, after_round=lambda: rounds.append(chip.now)
    )
    assert result.us == {"a": 7}
    assert rounds == [0.25, 0.5, 0.75]


@pytest.mark.parametrize("fails_after", [0, 1])
def test_a_failing_peer_is_named_and_the_others_go_on(fails_after: int) -> None:
    chip = FakeChip()
    timers = {"bad": chip.timer("bad", 1, fails_after=fails_after), "good": chip.timer("good", 2)}
    result = timing.measure_in_turn(timers, rounds=3, clock=chip.clock)
    assert result.us == {"good": 2} and chip.log.count("good") == 3
    assert result.failed == {"bad": "RuntimeError: bad broke"}


def test_no_peer_left_ends_the_warm_up() -> None:
    chip = FakeChip()
    result = timing.measure_in_turn({"a": chip.timer("a", fails_after=0)}, rounds=2, warm_seconds=9, clock=chip.clock)
    assert result.us == {} and list(result.failed) == ["a"]


@given(m=st.integers(1, 8192), n=st.integers(1, 32768), k16=st.integers(1, 1024), measure_us=st.floats(100, 1e5))
def test_schedule_rotates_past_the_l2_and_stays_bounded(m: int, n: int, k16: int, measure_us: float) -> None:
    k = 16 * k16
    plan = timing.schedule(m, n, k, l2_bytes=L2_BYTES, measure_us=measure_us)
    assert timing.MIN_SETS <= plan.sets <= timing.MAX_SETS
    assert plan.sets == timing.MAX_SETS or plan.sets * (m + n) * k > 3 * L2_BYTES
    assert plan.calls % plan.sets == 0 and plan.calls < timing.MAX_CALLS_PER_GRAPH + plan.sets
    assert plan.replays >= 1


def test_schedule_of_known_shapes() -> None:
    small = timing.schedule(1, 7168, 2048, l2_bytes=L2_BYTES, measure_us=10_000)
    large = timing.schedule(8192, 7168, 16384, l2_bytes=L2_BYTES, measure_us=10_000)
    assert (small.sets, small.calls, small.replays) == (13, 403, 5)
    assert (large.sets, large.calls, large.replays) == (2, 2, 2)


def test_errors_are_described_in_one_short_line() -> None:
    assert timing.describe(ValueError()) == "ValueError"
    assert timing.describe(ValueError("x" * 500)) == "ValueError: " + "x" * 145 + "..."
