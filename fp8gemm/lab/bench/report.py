"""Rows and table of a benchmark. Nothing here touches a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fp8gemm.lab.bench.timing import Timings, rounded


@dataclass(frozen=True)
class Shape:
    """D (M, N) = A (M, K) B (N, K)^T."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Row(Timings):
    """What was measured for one shape.

    Attributes:
        config: label of our tile config.
        sets: operand sets that the calls rotated over.
    """

    shape: Shape
    config: str = ""
    sets: int = 0

    def tflops(self, peer: str, products: int = 1) -> float:
        """10^12 floating-point operations a second, of a call that multiplies so often."""
        return 2 * products * self.shape.m * self.shape.n * self.shape.k / self.us[peer] / 1e6

    def as_json(self) -> dict[str, Any]:
        """Rounded, for people and for later comparison."""
        row: dict[str, Any] = {"m": self.shape.m, "n": self.shape.n, "k": self.shape.k}
        row |= {"us": rounded(self.us, 2), "spread": rounded(self.spread, 4), "config": self.config, "sets": self.sets}
        return row | self.circumstances()


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
        times = " ".join(f"{name:>{_width(name)}}" for name in names)
        ratios = " ".join(f"{name:>{_width(name)}}" for name in self.others)
        left, middle = f"{'M':>6} {'N':>6} {'K':>6} {'regime':<9}", f"{times} {'TFLOPS':>7}"
        groups = f"{'':{len(left)}} | {'microseconds per call':<{len(middle)}}"
        if self.others:
            groups += f" | speed of {self.ours} relative to"
        return f"{groups}\n{left} | {middle} | {ratios + ' | ' if self.others else ''}config"

    def line(self, row: Row) -> str:
        """One row; a dash where a peer has no time."""
        shape = row.shape
        times = " ".join(cell(row.us.get(name), _width(name), 2) for name in [self.ours, *self.others])
        tflops = cell(row.tflops(self.ours, self.products) if self.ours in row.us else None, 7, 0)
        ratios = " ".join(cell(row.time_ratio(name, self.ours), _width(name), 3) for name in self.others)
        middle = f"{times} {tflops} | " + (ratios + " | " if self.others else "")
        return f"{shape.m:>6} {shape.n:>6} {shape.k:>6} {row.regime.value:<9} | {middle}{row.config}"


def _width(name: str) -> int:
    return max(12, len(name))


def cell(value: float | None, width: int, digits: int) -> str:
    """A figure in a column of a table; a dash where there is none."""
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"
