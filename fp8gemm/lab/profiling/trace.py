"""The marks of an instrumented kernel: decoded, made into spans, added up. Nothing here touches a GPU.

The buffer is that of ``include/fp8gemm/trace/recorder.cuh``, whose order of tracks and activities is repeated here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

TRACKS = ("load", "multiply", "epilogue", "store")
BEGIN, END, TILE, ADD_SHARES = "set-up", "end", "tile", "add shares"
ACTIVITIES = (
    BEGIN,
    END,
    TILE,
    "wait empty",
    "load",
    "wait full",
    "multiply",
    "promote",
    ADD_SHARES,
    "wait slot",
    "stage",
    "wait staged",
    "store",
)
BY_K_BLOCK = {"load": ("wait empty", "load"), "consumer": ("wait full", "multiply", "promote")}
"""What each role does once or more per K block or stage."""
_OF_K_BLOCK = ("wait empty", "load", "wait full")
_OF_WAVE = ("multiply", "promote")

MAX_WARPGROUPS = 4
SLOTS = 1 << 14
REGIONS = len(TRACKS) * MAX_WARPGROUPS
BUFFER_BYTES = REGIONS * (SLOTS * 8 + 4)

_CLOCKS, _NANOSECONDS = 1 << 32, 1 << 28
_LEAST_NANOSECONDS = 50_000
"""The timer may tick once a microsecond; over less than this it does not tell the clock's rate."""


_Block = tuple[tuple[int, int] | None, int]
"""Tile and K block."""


@dataclass(frozen=True)
class Mark:
    """An activity's beginning.

    Attributes:
        cycle: since the first mark of the CTA.
        number: what the device counts for this activity.
        tile: (m, n) in CTA tiles, None before the track's first.
    """

    cycle: int
    activity: str
    number: int
    tile: tuple[int, int] | None

    @property
    def k_block(self) -> int | None:
        """Of the tile, whoever shares its K; None where the activity has none."""
        if self.activity in _OF_WAVE:
            return self.number >> 8
        return self.number if self.activity in _OF_K_BLOCK else None


@dataclass(frozen=True)
class Span:
    """One activity of one role.

    Attributes:
        role: such as "load" or "consumer 1".
        start, end: in cycles since the first mark of the CTA.
        tile, k_block: as of its mark.
        number: the wave of the K block, or the part of the tile, where there are such.
    """

    role: str
    activity: str
    start: int
    end: int
    tile: tuple[int, int] | None
    k_block: int | None
    number: int

    @property
    def cycles(self) -> int:
        """How long it lasted."""
        return self.end - self.start


@dataclass(frozen=True)
class Recording:
    """What one launch recorded.

    Attributes:
        marks: by role, in order of time.
        dropped: marks that found no room, by role; those without any are left out.
        clock_mhz: the SM's clock, None where the launch was too short to tell.
    """

    marks: dict[str, list[Mark]]
    dropped: dict[str, int]
    clock_mhz: float | None

    def spans(self) -> list[Span]:
        """Every activity of every role, role after role."""
        return [span for role, marks in self.marks.items() for span in _spans(role, marks)]


def decode(buffer: bytes) -> Recording:
    """Read the buffer of one launch.

    Raises:
        ValueError: it is not of the size that the device declares.
    """
    if len(buffer) != BUFFER_BYTES:
        raise ValueError(f"expected a trace buffer of {BUFFER_BYTES} bytes, got {len(buffer)}")
    made = struct.unpack_from(f"<{REGIONS}I", buffer, REGIONS * SLOTS * 8)
    raw = {
        region: list(struct.iter_unpack("<II", buffer[region * SLOTS * 8 :][: min(count, SLOTS) * 8]))
        for region, count in enumerate(made)
        if count
    }
    if not raw:
        return Recording({}, {}, None)
    base = next(iter(raw.values()))[0][0]
    # The clock's low word may wrap once; the marks of a CTA lie far closer together than half its range.
    clocks = {
        region: [(clock - base + _CLOCKS // 2) % _CLOCKS - _CLOCKS // 2 for clock, _ in words]
        for region, words in raw.items()
    }
    origin = min(min(each) for each in clocks.values())
    marks: dict[str, list[Mark]] = {}
    dropped: dict[str, int] = {}
    for region, words in raw.items():
        role = _role(region)
        # A consumer makes the marks of two tracks, each of which says by itself at which tile it is.
        found = list(_marks([clock - origin for clock in clocks[region]], [word for _, word in words]))
        marks[role] = sorted(marks.get(role, []) + found, key=lambda mark: mark.cycle)
        if made[region] > SLOTS:
            dropped[role] = dropped.get(role, 0) + made[region] - SLOTS
    return Recording(marks, dropped, _clock_mhz(marks))


def _marks(cycles: Sequence[int], words: Sequence[int]) -> Iterator[Mark]:
    tile: tuple[int, int] | None = None
    for cycle, word in zip(cycles, words, strict=True):
        activity, number = ACTIVITIES[word & 15], word >> 4
        of_mark = (number >> 14, number & 0x3FFF) if activity in (TILE, ADD_SHARES) else tile
        if activity == TILE:
            tile = of_mark
        yield Mark(cycle, activity, number, of_mark)  # shares are added when the next tile has been begun


def _role(region: int) -> str:
    track, index = divmod(region, MAX_WARPGROUPS)
    name = TRACKS[track]
    if name == "load":
        return name
    return f"store {index}" if name == "store" else f"consumer {index}"


def _clock_mhz(marks: Mapping[str, Sequence[Mark]]) -> float | None:
    rates = []
    for of_role in marks.values():
        first = next(mark for mark in of_role if mark.activity == BEGIN)
        last = next(mark for mark in reversed(of_role) if mark.activity == END)
        nanoseconds = (last.number - first.number) % _NANOSECONDS
        if nanoseconds >= _LEAST_NANOSECONDS:
            rates.append((nanoseconds, 1e3 * (last.cycle - first.cycle) / nanoseconds))
    return max(rates)[1] if rates else None


def _spans(role: str, marks: Sequence[Mark]) -> Iterator[Span]:
    for mark, following in pairwise(marks):
        if mark.activity != END:
            number = mark.number & 0xFF if mark.activity in _OF_WAVE else mark.number
            number = 0 if mark.activity in (BEGIN, TILE, ADD_SHARES, *_OF_K_BLOCK) else number
            yield Span(role, mark.activity, mark.cycle, following.cycle, mark.tile, mark.k_block, number)


@dataclass(frozen=True)
class RoleSummary:
    """How a role spent its time.

    Attributes:
        cycles: from its first mark to its last.
        shares: of each activity, by name, in the order in which they first came.
        tiles, k_blocks: how many it worked on.
        cycles_per_k_block: of what it does per K block, waits included; None for a role that has none. Consumers that
            share K work side by side: their K blocks count together.
    """

    role: str
    cycles: int
    shares: dict[str, float]
    tiles: int
    k_blocks: int
    cycles_per_k_block: float | None

    def line(self) -> str:
        """For people."""
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in self.shares.items())
        per_block = "" if self.cycles_per_k_block is None else f"; {self.cycles_per_k_block:.0f} cycles a K block"
        blocks = f", {self.k_blocks} K blocks" if self.k_blocks else ""
        return f"{self.role:<11} {self.cycles} cycles, {self.tiles} tiles{blocks}: {shares}{per_block}"


def summarise(spans: Sequence[Span]) -> list[RoleSummary]:
    """One summary for each role, in the order of the spans."""
    blocks: dict[str, set[_Block]] = {}
    for span in spans:
        blocks.setdefault(_kind(span.role), set()).update(_blocks([span]))
    return [
        _summary(role, [span for span in spans if span.role == role], len(blocks[_kind(role)])) for role in roles(spans)
    ]


def roles(spans: Sequence[Span]) -> list[str]:
    """The roles that there are, in the order of the spans."""
    return list(dict.fromkeys(span.role for span in spans))


def _kind(role: str) -> str:
    """Of "consumer 1": "consumer"."""
    return role.split()[0]


def _blocks(spans: Sequence[Span]) -> set[_Block]:
    return {(span.tile, span.k_block) for span in spans if span.k_block is not None}


def _summary(role: str, spans: Sequence[Span], blocks_of_kind: int) -> RoleSummary:
    total = sum(span.cycles for span in spans)
    by_activity: dict[str, int] = {}
    for span in spans:
        by_activity[span.activity] = by_activity.get(span.activity, 0) + span.cycles
    in_loop = sum(by_activity.get(name, 0) for name in BY_K_BLOCK.get(_kind(role), ()))
    return RoleSummary(
        role=role,
        cycles=total,
        shares={name: cycles / max(total, 1) for name, cycles in by_activity.items()},
        tiles=len({span.tile for span in spans} - {None}),
        k_blocks=len(_blocks(spans)),
        cycles_per_k_block=in_loop / blocks_of_kind if blocks_of_kind else None,
    )
