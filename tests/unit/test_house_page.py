"""scripts/house.py, and the table of rooms in docs/architecture.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.scripts import load_script
from tests.unit.test_house import EVERYWHERE, MAY_IMPORT

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
MOST_ROOMS = 28

house = load_script("house")


def test_the_page_names_the_rooms_and_whom_each_may_enter() -> None:
    section = PAGE[PAGE.index("## Who may import whom") : PAGE.index("## Beside the package")]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| ([\w, ]+|-) \|$", section, re.MULTILINE)
    named = {room: set(entered.split(", ")) - {"-"} for room, entered in rows}
    assert named == MAY_IMPORT and [room for room, _ in rows] == list(reversed(MAY_IMPORT))
    assert all(f"`{room}`" in section for room in EVERYWHERE)


def test_the_house_has_few_rooms_no_circle_and_no_arrow_up() -> None:
    found = house.survey()
    assert found.up == () and found.circles == ()
    assert len(MAY_IMPORT) == len(found.rooms) <= MOST_ROOMS


def test_arrows_up_and_circles_are_found() -> None:
    arrows = {"roof": {"wall", "door"}, "wall": {"door", "floor"}, "door": {"wall"}, "floor": set(), "hut": {"roof"}}
    assert house.circles_of(arrows) == (("door", "wall"),)
    assert house.floors_of(arrows) == {"floor": 0, "door": 1, "wall": 1, "roof": 2, "hut": 3}
    order = ["floor", "door", "wall", "roof", "hut"]
    assert house.up_in(arrows, order) == (("door", "wall"),)
    assert house.up_in(arrows, order[:-2]) == (("door", "wall"), ("hut", "roof")), "who is in no table is the highest"


def test_the_command_prints_the_house_and_fails_where_it_is_crooked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert house.main([]) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"^ +\d+  {room} ", printed, re.MULTILINE) for room in MAY_IMPORT)
    assert printed.endswith("arrows up: none\ncircles: none\n")
    low, high = house.Room("low", 0, 1, 10, ("high",)), house.Room("high", 0, 2, 20, ("low",))
    crooked = house.House((low, high), (("low", "high"),), (("high", "low"),))
    monkeypatch.setattr(house, "survey", lambda: crooked)
    assert house.main(["--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["lines"], found["arrows"], found["floors"]) == (3, 30, 2, 1)
    assert found["up"] == [["low", "high"]] and found["circles"] == [["high", "low"]]
    assert found["rooms"][0] == {"name": "low", "floor": 0, "files": 1, "lines": 10, "enters": ["high"]}
