"""What a tuning run tells: a line per shape, the statistics of all, and the table they make. Touches no GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import geometric_mean
from typing import Any

from fp8gemm.lab.bench.report import SIZES, figure, sizes
from fp8gemm.lab.tune.results import Row
from fp8gemm.quoting import counted
from fp8gemm.terminal.table import Column, Group, Table
from fp8gemm.tuning.table import Entry, Key, tile_of_label
from fp8gemm.tuning.table import Table as TunedTable

MARGIN = 0.015
"""By how much a config must beat the model's choice to enter a table: what two runs may differ by is no reason to."""

TENSORWISE, DEEP_GEMM = PEERS = ("tensorwise", "deepgemm")
"""Who can be timed beside the candidates, by the benchmark's names."""


class RowTable:
    """One row per shape: the fastest candidate, and the choice.

    Args:
        more: columns before those of the shape.
    """

    def __init__(self, *more: Column) -> None:
        config = Column("config", 18, left=True)
        self._table = Table(
            Group((*more, *SIZES)),
            Group((Column("best us", 9), config)),
            Group((Column("choice us", 9), config, Column("regret", 7))),
            Group(tuple(map(Column, PEERS)), "speed relative to"),
        )
        self.header = self._table.header

    def line(self, row: Row, *more: str) -> str:
        """A shape, and below it what failed."""
        best = row.best
        best_us, choice_us = (figure(row.us.get(label or ""), 2) for label in (best, row.choice))
        regret = "-" if row.regret is None else f"{row.regret:.2%}"
        speeds = (figure(row.speed_relative_to(peer), 3) for peer in PEERS)
        cells = *more, *sizes(row.shape), best_us, best or "-", choice_us, row.choice, regret, *speeds
        failed = (self._table.remark(f"{name} failed: {reason}") for name, reason in row.failed.items())
        return "\n".join([self._table.line(*cells), *failed])


@dataclass(frozen=True)
class Beside:
    """The choice's speed over a peer's, at the shapes where both were timed.

    Attributes:
        shapes: how many.
        at_least_as_fast: at how many of them the choice takes no longer.
        geomean, slowest: geometric mean and least of these speeds.
        best_geomean: geometric mean of the fastest candidate's.
    """

    shapes: int
    at_least_as_fast: int
    geomean: float
    slowest: float
    best_geomean: float

    @classmethod
    def of(cls, rows: Sequence[Row], peer: str) -> Beside | None:
        """Compute them; None without such a shape."""
        timed = [(row, speed) for row in rows if (speed := row.speed_relative_to(peer)) is not None]
        if not timed:
            return None
        speeds = [speed for _, speed in timed]
        best = geometric_mean(row.peers[peer] / min(row.us.values()) for row, _ in timed)
        return cls(len(speeds), sum(speed >= 1 for speed in speeds), geometric_mean(speeds), min(speeds), best)


@dataclass(frozen=True)
class Summary:
    """Statistics over the shapes of a run.

    Attributes:
        shapes: how many have a time for the choice.
        regret_mean, regret_p95, regret_max: of the choice over the fastest candidate; None without such shapes.
        peers: by name, of those that were timed.
        failed: candidates without a time, over all shapes.
    """

    shapes: int
    regret_mean: float | None
    regret_p95: float | None
    regret_max: float | None
    peers: dict[str, Beside]
    failed: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Summary:
        """Compute them."""
        regrets = [row.regret for row in rows if row.regret is not None]
        return cls(
            shapes=len(regrets),
            regret_mean=statistics.fmean(regrets) if regrets else None,
            regret_p95=percentile(regrets, 0.95) if regrets else None,
            regret_max=max(regrets, default=None),
            peers={peer: beside for peer in PEERS if (beside := Beside.of(rows, peer)) is not None},
            failed=sum(len(row.failed.keys() - set(PEERS)) for row in rows),
        )

    def __str__(self) -> str:
        if self.regret_mean is None or self.regret_p95 is None or self.regret_max is None:
            return "no shape has a time for the choice"
        text = (
            f"{counted(self.shapes, 'shape')}: the choice costs {self.regret_mean:.2%} over the fastest candidate on "
            f"average, {self.regret_p95:.2%} at the 95th percentile, {self.regret_max:.2%} at most"
        )
        for peer, beside in self.peers.items():
            text += (
                f"\nspeed relative to {peer}: {beside.geomean:.3f} by geometric mean of "
                f"{counted(beside.shapes, 'shape')} (of the fastest candidate {beside.best_geomean:.3f}), "
                f"at least 1 at {beside.at_least_as_fast}, {beside.slowest:.3f} at the slowest"
            )
        return text + (f"\n{counted(self.failed, 'candidate')} failed" if self.failed else "")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def as_json(rows: Sequence[Row], summary: Summary) -> dict[str, Any]:
    """Best, choice and regret of each shape, and the statistics."""
    found = [
        {
            **asdict(row.shape),
            "best": row.best,
            "best_us": row.us[row.best] if row.best else None,
            "choice": row.choice,
            "choice_us": row.us.get(row.choice),
            "regret": row.regret,
            "speed": {peer: speed for peer in PEERS if (speed := row.speed_relative_to(peer)) is not None},
            "failed": row.failed,
        }
        for row in rows
    ]
    return {"rows": found, **asdict(summary)}


def updated(
    table: TunedTable, rows: Iterable[Row], *, margin: float = MARGIN, static_weights: bool = False
) -> TunedTable:
    """The table after these shapes: each step of M whose fastest config beats the model's choice by more than
    ``margin`` has that as its entry, each other one none; entries of other shapes stay.

    Several M of one step share an entry: the config of the least geometric mean, of those that all of them have.
    """
    entries = {entry.key: entry for entry in table.entries}
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        if row.model in row.us:
            groups.setdefault(_entry(row, row.model, static_weights).key, []).append(row)
    for group in groups.values():
        common = [label for label in group[0].us if all(label in row.us for row in group)]
        means = {label: geometric_mean(row.us[label] for row in group) for label in common}
        best, last = min(means, key=means.__getitem__), group[-1]
        entry = _entry(last, best, static_weights)
        entries.pop(entry.key, None)
        if means[last.model] > means[best] * (1 + margin):
            entries[entry.key] = entry
    return replace(table, entries=tuple(entries.values()))


def _entry(row: Row, label: str, static_weights: bool) -> Entry:
    shape = row.shape
    us, model_us = round(row.us[label], 3), round(row.us[row.model], 3)
    return Entry(shape.m, shape.n, shape.k, tile_of_label(label), us, model_us, static_weights=static_weights)
