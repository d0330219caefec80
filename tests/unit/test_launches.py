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

    played = play_parts(parts(Wrong(0, 0), Wrong(2, 7), Wrong(0, 0)), 100, limit_s=60.0)
    assert (made, played.wrong, played.worst) == (["part 0", "part 1"], (2, 7), "other 1")
    made.clear()
    played = play_parts(parts(Wrong(0, 0), None, Wrong(0, 0)), 100, limit_s=60.0)
    assert (made, played.hangs, played.worst) == (["part 0", "part 1"], True, "other 1")
    made.clear()
    played = play_parts(parts(Wrong(0, 0), Wrong(0, 0)), 41, limit_s=60.0)
    assert (made, played.launches, played.enough) == (["part 0", "part 1"], 60, True)


def test_a_part_is_spread_over_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[Any]] = []
    monkeypatch.setattr(launches, "build_many", built.append)
    monkeypatch.setattr(launches, "kernel_request", lambda problem, config: (problem, config))
    monkeypatch.setattr(launches, "PART", 3)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    graphs: list[Any] = []
    pairs = [(index, "tile") for index in range(8)]
    parts = launches.make_in_parts(pairs, lambda problem, config: f"{problem} {config}", graphs)  # type: ignore[arg-type,return-value]
    assert next(parts) == ["0 tile", "3 tile", "6 tile"] and built == [pairs[0::3]]
    assert list(parts) == [["1 tile", "4 tile", "7 tile"], ["2 tile", "5 tile"]] and len(graphs) == 8


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
