"""Rows and table of a benchmark. Nothing here touches a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


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

    def time_ratio(self, over: str, under: str) -> float | None:
        """One peer's time over another's, which is the speed of ``under`` relative to ``over``. None unless both were
        timed."""
        if over not in self.us or under not in self.us:
            return None
        return self.us[over] / self.us[under]

    def tflops(self, peer: str, products: int = 1) -> float:
        """10^12 floating-point operations a second, of a call that multiplies so often."""
        return 2 * products * self.shape.m * self.shape.n * self.shape.k / self.us[peer] / 1e6

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
        products: multiplications of a row's size in one call.
    """

    ours: str
    others: Sequence[str]
    products: int = 1

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
        tflops = f"{row.tflops(self.ours, self.products):7.0f}" if self.ours in row.us else f"{'-':>7}"
        ratios = " ".join(_cell(row.time_ratio(name, self.ours)) for name in self.others)
        middle = f"{times} {tflops} | " + (ratios + " | " if self.others else "")
        return f"{shape.m:>6} {shape.n:>6} {shape.k:>6} | {middle}{row.config}"


def _cell(ratio: float | None) -> str:
    return f"{'-':>12}" if ratio is None else f"{ratio:12.3f}"
