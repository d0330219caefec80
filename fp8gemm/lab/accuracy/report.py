"""Rows, summary, tables and JSON of an accuracy run. Nothing here computes a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fp8gemm.lab.accuracy.figures import Figures
from fp8gemm.lab.accuracy.network import Agreement
from fp8gemm.lab.bench.report import Shape, sizes
from fp8gemm.terminal.table import Column, Group, Table


@dataclass(frozen=True)
class Verdict:
    """How a kernel passed the gates for its operands, which know nothing of quantisation.

    Attributes:
        data: what the gates took the data for.
        passed: whether all of them did.
        failed: names of those that did not.
        gate: the one that came closest to its limit.
        worst, limit: that gate's.
    """

    data: str
    passed: bool
    failed: tuple[str, ...]
    gate: str
    worst: float
    limit: float

    def __str__(self) -> str:
        return (
            f"FAILED: {', '.join(self.failed)}" if self.failed else f"{self.gate} {self.worst:.1e} of {self.limit:.2g}"
        )


@dataclass(frozen=True)
class Row:
    """One shape of one distribution.

    Attributes:
        sweep: "layers", or "k" for a row of the sweep over K.
        distribution: name.
        shape: M, N, K.
        seed: of these operands alone.
        figures: by product.
        gates: by kernel.
    """

    sweep: str
    distribution: str
    shape: Shape
    seed: int
    figures: Mapping[str, Figures]
    gates: Mapping[str, Verdict]

    def as_json(self) -> dict[str, Any]:
        """Everything, figures to four digits."""
        return {
            "sweep": self.sweep,
            "distribution": self.distribution,
            "m": self.shape.m,
            "n": self.shape.n,
            "k": self.shape.k,
            "seed": self.seed,
            "figures": {product: _rounded(asdict(figures)) for product, figures in self.figures.items()},
            "gates": {kernel: _rounded(asdict(verdict)) for kernel, verdict in self.gates.items()},
        }


@dataclass(frozen=True)
class Report:
    """A whole run.

    Attributes:
        heading: machine, date, seed and what was compared; the start of the JSON.
        rows: of both sweeps.
        network: agreement by distribution and product.
    """

    heading: Mapping[str, Any]
    rows: Sequence[Row]
    network: Mapping[str, Mapping[str, Agreement]]

    @property
    def failed(self) -> bool:
        """Whether a kernel failed a gate."""
        return any(not verdict.passed for row in self.rows for verdict in row.gates.values())

    def summary(self) -> dict[str, dict[str, Figures]]:
        """By distribution and product over the layers: means, and maxima of `worst_row` and `max_over_s`."""
        result: dict[str, dict[str, Figures]] = {}
        layers = [row for row in self.rows if row.sweep == "layers"]
        for distribution in dict.fromkeys(row.distribution for row in layers):
            of_one = [row.figures for row in layers if row.distribution == distribution]
            result[distribution] = {product: _summed_up([each[product] for each in of_one]) for product in of_one[0]}
        return result

    def as_json(self) -> dict[str, Any]:
        """The heading, the summary, the network and the rows."""
        return {
            **self.heading,
            "passed": not self.failed,
            "summary": {
                distribution: {product: _rounded(asdict(figures)) for product, figures in by_product.items()}
                for distribution, by_product in self.summary().items()
            },
            "network": {
                **self.heading["network"],
                "agreement": {
                    distribution: {product: _rounded(asdict(agreement)) for product, agreement in by_product.items()}
                    for distribution, by_product in self.network.items()
                },
            },
            "rows": [row.as_json() for row in self.rows],
        }

    def lines(self) -> list[str]:
        """The summary and the network as text tables."""
        names = _DISTRIBUTION, Column("product", 13, left=True)
        titles = "rel. RMS", "worst row", "1 - cos", "SQNR dB", "max err/S", "calc_diff"
        table = Table(Group((*names, *(Column(title, 9) for title in titles))))
        lines = ["", "Over the layers: means; worst row and max err/S are maxima.", table.header()]
        for distribution, by_product in self.summary().items():
            for product, each in by_product.items():
                cells = [f"{value:.2e}" for value in (each.relative_rms, each.worst_row, each.cosine_loss)]
                cells += [f"{each.sqnr_db:.1f}", f"{each.max_over_s:.2e}", f"{each.calc_diff:.2e}"]
                lines.append(table.line(distribution, product, *cells))
        table = Table(Group((*names, Column("rel. RMS", 9), Column("top-1 agreement", 16))))
        lines += ["", f"Network against its float64 twin: {self.heading['network']['description']}.", table.header()]
        for distribution, agreements in self.network.items():
            for product, agreement in agreements.items():
                lines.append(
                    table.line(distribution, product, f"{agreement.relative_rms:.2e}", f"{agreement.top1:.1%}")
                )
        return lines


_DISTRIBUTION = Column("distribution", 17, left=True)


class RowTable:
    """One row per shape of a distribution: the relative RMS error of each product, and each kernel's closest gate."""

    def __init__(self, products: Sequence[str]) -> None:
        self._table = Table(
            Group((_DISTRIBUTION, Column("M", 5), Column("N", 6), Column("K", 6))),
            Group(tuple(Column(name, 12) for name in products), "relative RMS error"),
            Group((Column("closest gates", 24, left=True),), "kernels"),
        )
        self.header = self._table.header

    def line(self, row: Row) -> str:
        """One row."""
        errors = [f"{figures.relative_rms:.2e}" for figures in row.figures.values()]
        gates = "; ".join(f"{kernel}: {verdict}" for kernel, verdict in row.gates.items())
        return self._table.line(row.distribution, *sizes(row.shape), *errors, gates)


def _summed_up(figures: Sequence[Figures]) -> Figures:
    return Figures(
        relative_rms=fmean([each.relative_rms for each in figures]),
        worst_row=max(each.worst_row for each in figures),
        cosine_loss=fmean([each.cosine_loss for each in figures]),
        sqnr_db=fmean([each.sqnr_db for each in figures]),
        max_over_s=max(each.max_over_s for each in figures),
        calc_diff=fmean([each.calc_diff for each in figures]),
    )


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in values.items()}
