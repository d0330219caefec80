"""The house: rooms of the package, how large they are, on which floor they stand and which they enter.

A room is a package or module right below ``fp8gemm``. Its floor is 0 if it enters none, else one above the highest that
it enters. An arrow that goes up enters a room that the table in ``tests/unit/test_house.py`` has no lower; rooms that
enter each other, on whatever way round, are a circle.

Exit code 0: no arrow goes up and there is no circle. 1: otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from tests.unit.test_house import FILES, MAY_IMPORT, entered_from, room_of  # noqa: E402

Arrows = Mapping[str, Collection[str]]
EXIT_UPWARD = 1


@dataclass(frozen=True)
class Room:
    """One room.

    Attributes:
        name: of the package or module; "fp8gemm" is the package's own module.
        floor: 0 for the lowest; rooms of a circle share one.
        files: Python files.
        lines: of these, all counted.
        enters: rooms that it imports from, sorted.
    """

    name: str
    floor: int
    files: int
    lines: int
    enters: tuple[str, ...]


@dataclass(frozen=True)
class House:
    """All rooms from the top floor down, the arrows (from, to) that go up, and the circles."""

    rooms: tuple[Room, ...]
    up: tuple[tuple[str, str], ...]
    circles: tuple[tuple[str, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """Totals, rooms, arrows up and circles."""
        totals = {
            "files": sum(room.files for room in self.rooms),
            "lines": sum(room.lines for room in self.rooms),
            "arrows": sum(len(room.enters) for room in self.rooms),
            "floors": 1 + max(room.floor for room in self.rooms),
        }
        return {**totals, "up": self.up, "circles": self.circles, "rooms": [asdict(room) for room in self.rooms]}

    def lines(self) -> Iterator[str]:
        """The same for people."""
        found = self.as_json()
        counted = ", ".join(f"{found[name]} {name}" for name in ("floors", "arrows", "files", "lines"))
        yield f"{len(self.rooms)} rooms, {counted}"
        for room in self.rooms:
            yield f"{room.floor:3}  {room.name:<13}{room.files:4} files{room.lines:7} lines  {' '.join(room.enters)}"
        yield "arrows up: " + (", ".join(f"{start} -> {end}" for start, end in self.up) or "none")
        yield "circles: " + ("; ".join(" ".join(each) for each in self.circles) or "none")


def reached(arrows: Arrows) -> dict[str, set[str]]:
    """Of each room all those that a way of one arrow or more leads to."""
    found = {room: set(arrows[room]) for room in arrows}
    for middle in arrows:
        for ahead in found.values():
            if middle in ahead:
                ahead |= found[middle]
    return found


def circles_of(arrows: Arrows) -> tuple[tuple[str, ...], ...]:
    """Rooms from which a way leads back, each with those on it."""
    ahead = reached(arrows)
    return tuple(sorted({tuple(sorted(b for b in ahead[a] if a in ahead[b])) for a in arrows if a in ahead[a]}))


def floors_of(arrows: Arrows) -> dict[str, int]:
    """The floor of each room."""
    ahead, floors = reached(arrows), dict[str, int]()
    for room in sorted(arrows, key=lambda each: len(ahead[each] - {each})):  # who is entered has fewer below
        below = [floors[each] for each in ahead[room] if room not in ahead[each] and each != room]
        floors[room] = 1 + max(below, default=-1)
    return floors


def up_in(arrows: Arrows, order: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Arrows to a room that does not come earlier in ``order``; one that is not in it counts as the highest."""
    rank = {room: number for number, room in enumerate(order)}
    last = len(order)
    pairs = ((start, end) for start in arrows for end in arrows[start])
    return tuple(sorted((start, end) for start, end in pairs if rank.get(end, last) >= rank.get(start, last)))


def survey() -> House:
    """The house as it stands."""
    of_room = {room: [path for path in FILES if room_of(path) == room] for room in sorted(map(room_of, FILES))}
    arrows = {
        room: {entered for path in paths for entered in entered_from(path)} - {room} for room, paths in of_room.items()
    }
    floors = floors_of(arrows)
    rooms = [
        Room(
            name,
            floors[name],
            len(paths),
            sum(path.read_text().count("\n") for path in paths),
            tuple(sorted(arrows[name])),
        )
        for name, paths in of_room.items()
    ]
    rooms.sort(key=lambda room: (-room.floor, room.name))
    return House(tuple(rooms), up_in(arrows, tuple(MAY_IMPORT)), circles_of(arrows))


def main(argv: Sequence[str] | None = None) -> int:
    """Look and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    house = survey()
    print(json.dumps(house.as_json(), indent=1) if options.json else "\n".join(house.lines()))
    return EXIT_UPWARD if house.up or house.circles else 0


if __name__ == "__main__":
    sys.exit(main())
