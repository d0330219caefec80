"""How kernels that are launched very often are made and played, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import launches
from tests.launches import Played, Wrong, check_played, play, play_parts


def test_parts_are_played_as_they_are_made_and_the_first_that_is_wrong_is_the_last() -> None:
    made: list[str] = []

    def graph(name: str, wrong: Wrong | None) -> Any:
        return SimpleNamespace(name=name, launches=5, replay=lambda: wrong)

    def parts(*results: Wrong | None) -> Iterator[list[Any]]:
        for index, wrong in enumerate(results):
            made.append(f"part {index}")
            yield [graph(f"sound {index}", Wrong(0, 0)), graph(f"other {index}", wrong)]

    def played(*results: Wrong | None, wanted: int) -> Played:
        made.clear()
        graphs: list[Any] = []
        found = play_parts(parts(*results), graphs, wanted, limit_s=60.0)
        # What hangs is among them, too: it must outlive whoever played it.
        assert [each.name for each in graphs] == ["sound 0", "other 0", "sound 1", "other 1"]
        assert made == ["part 0", "part 1"]
        return found

    wrong = played(Wrong(0, 0), Wrong(2, 7), Wrong(0, 0), wanted=100)
    assert (wrong.wrong, wrong.worst) == ((2, 7), "other 1")
    hanging = played(Wrong(0, 0), None, Wrong(0, 0), wanted=100)
    assert (hanging.hangs, hanging.worst) == (True, "other 1")
    sound = played(Wrong(0, 0), Wrong(0, 0), wanted=41)
    assert (sound.launches, sound.enough) == (60, True)


def test_a_part_is_spread_over_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[Any]] = []
    monkeypatch.setattr(launches, "build_many", built.append)
    monkeypatch.setattr(launches, "kernel_request", lambda problem, config: (problem, config))
    monkeypatch.setattr(launches, "PART", 3)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    pairs = [(index, "tile") for index in range(8)]

    def name(problem: int, config: str) -> Any:
        return f"{problem} {config}"

    parts = launches.make_in_parts(pairs, name)
    assert next(parts) == ["0 tile", "3 tile", "6 tile"] and built == [pairs[0::3]]
    assert [*parts] == [["1 tile", "4 tile", "7 tile"], ["2 tile", "5 tile"]]


def test_what_hangs_and_what_is_late_is_told_apart() -> None:
    def raise_it(message: str) -> None:
        raise RuntimeError(message)

    hanging = Played(7, 1.0, Wrong(0, 0), "slow", hangs=True, enough=True)
    with pytest.raises(RuntimeError, match="slow does not end; 7 launches, seed 5"):
        check_played(hanging, 9, 5, raise_it)
    with pytest.raises(TimeoutError, match="7 of 9 launches took 1 s"):
        check_played(replace(hanging, hangs=False, enough=False), 9, 5, raise_it)
    check_played(replace(hanging, hangs=False), 9, 5, raise_it)
    assert play([SimpleNamespace(name="slow", launches=5, replay=lambda: None)], 9, limit_s=9.0).hangs
