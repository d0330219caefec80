"""Rows and table of a benchmark. Nothing here touches a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fp8gemm.lab.bench.timing import Timings, rounded
from fp8gemm.terminal.table import Column, Group, Table


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


SIZES = Column("M", 6), Column("N", 6), Column("K", 6)


class ProductTable:
    """One row per shape: microseconds of each peer, then our speed relative to each.

    Attributes:
        ours: the peer that the others are compared with.
        others: the other peers, in column order.
        products: multiplications of a row's size in one call.
    """

    def __init__(self, ours: str, others: Sequence[str], products: int = 1) -> None:
        self.ours, self.others, self.products = ours, others, products
        times = tuple(Column(name, 9) for name in (ours, *others))
        groups = [Group((*SIZES, Column("regime", 9, left=True)))]
        groups += [Group((*times, Column("TFLOPS", 7)), "microseconds per call")]
        groups += [Group(times[1:], f"speed of {ours} relative to")] if others else []
        self._table = Table(*groups, Group((Column("config", 18, left=True),)))
        self.header, self.remark = self._table.header, self._table.remark

    def line(self, row: Row) -> str:
        """One row; a dash where a peer has no time."""
        times = [figure(row.us.get(name), 2) for name in (self.ours, *self.others)]
        tflops = figure(row.tflops(self.ours, self.products) if self.ours in row.us else None, 0)
        ratios = [figure(row.time_ratio(name, self.ours), 3) for name in self.others]
        return self._table.line(*sizes(row.shape), row.regime.value, *times, tflops, *ratios, row.config)


def sizes(shape: Shape) -> list[str]:
    """The cells of `SIZES`."""
    return [str(shape.m), str(shape.n), str(shape.k)]


def figure(value: float | None, digits: int) -> str:
    """A cell; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
