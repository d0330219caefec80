"""Rows, table, geometric means and JSON of a benchmark. Nothing here touches a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fp8gemm.benchmark.timing import geometric_mean


@dataclass(frozen=True)
class Shape:
    """D (M, N) = A (M, K) B (N, K)^T."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Row:
    """What was measured for one shape.

    Attributes:
        us: median microseconds per call, by peer.
        spread: (slowest - fastest) / median over the rounds, by peer.
        failed: reason, by peer, of those that have no time.
        config: label of our tile config.
        sets: operand sets that the calls rotated over.
        sm_mhz, watts: medians over the rounds, None where the machine does not tell.
    """

    shape: Shape
    us: dict[str, float]
    spread: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    config: str = ""
    sets: int = 0
    sm_mhz: float | None = None
    watts: float | None = None

    def speed_relative_to(self, peer: str, ours: str) -> float | None:
        """Our speed over the peer's: above 1 we are faster. None unless both were timed."""
        if peer not in self.us or ours not in self.us:
            return None
        return self.us[peer] / self.us[ours]

    def tflops(self, peer: str) -> float:
        """10^12 floating-point operations a second."""
        return 2 * self.shape.m * self.shape.n * self.shape.k / self.us[peer] / 1e6

    def as_json(self) -> dict[str, Any]:
        """Rounded, for people and for later comparison."""
        row: dict[str, Any] = {"m": self.shape.m, "n": self.shape.n, "k": self.shape.k}
        row["us"] = {peer: round(us, 2) for peer, us in self.us.items()}
        row["spread"] = {peer: round(spread, 4) for peer, spread in self.spread.items()}
        row |= {"config": self.config, "sets": self.sets, "sm_mhz": self.sm_mhz, "watts": self.watts}
        return row | ({"failed": self.failed} if self.failed else {})


@dataclass(frozen=True)
class Table:
    """Text table, one line per row: microseconds of each peer, then our speed relative to each.

    Attributes:
        ours: the peer that the others are compared with.
        others: the other peers, in column order.
    """

    ours: str
    others: Sequence[str]

    def header(self) -> str:
        """Two lines: what the column groups are, and their names."""
        names = [self.ours, *self.others]
        times = " ".join(f"{name:>12}" for name in names)
        ratios = " ".join(f"{name:>12}" for name in self.others)
        left, middle = f"{'M':>6} {'N':>6} {'K':>6}", f"{times} {'TFLOPS':>7}"
        groups = f"{'':{len(left)}} | {'microseconds per call':<{len(middle)}}"
        if self.others:
            groups += f" | speed of {self.ours} relative to"
        return f"{groups}\n{left} | {middle} | {ratios + ' | ' if self.others else ''}config"

    def line(self, row: Row) -> str:
        """One row; a dash where a peer has no time."""
        shape = row.shape
        times = " ".join(
            f"{row.us[name]:12.2f}" if name in row.us else f"{'-':>12}" for name in [self.ours, *self.others]
        )
        tflops = f"{row.tflops(self.ours):7.0f}" if self.ours in row.us else f"{'-':>7}"
        ratios = " ".join(_cell(row.speed_relative_to(name, self.ours)) for name in self.others)
        middle = f"{times} {tflops} | " + (ratios + " | " if self.others else "")
        return f"{shape.m:>6} {shape.n:>6} {shape.k:>6} | {middle}{row.config}"

    def geomeans(self, rows: Sequence[Row]) -> list[str]:
        """One line per M, in order of first appearance; the count says how many shapes a mean is over."""
        lines = []
        for m, means in geomeans(rows, self.ours, self.others).items():
            cells = ", ".join(f"{mean:.3f} of {name} ({count})" for name, (mean, count) in means.items())
            lines.append(f"M = {m}: {cells}")
        return lines


def geomeans(rows: Sequence[Row], ours: str, others: Sequence[str]) -> dict[int, dict[str, tuple[float, int]]]:
    """Geometric mean of our relative speed and the number of shapes it is over, by M and peer."""
    result: dict[int, dict[str, tuple[float, int]]] = {}
    for m in dict.fromkeys(row.shape.m for row in rows):
        for name in others:
            ratios = [row.speed_relative_to(name, ours) for row in rows if row.shape.m == m]
            timed = [ratio for ratio in ratios if ratio is not None]
            if timed:
                result.setdefault(m, {})[name] = (geometric_mean(timed), len(timed))
    return result


def _cell(ratio: float | None) -> str:
    return f"{'-':>12}" if ratio is None else f"{ratio:12.3f}"
