"""From layers and rows to the figures of a report: choices, predictions, and which kernels lie in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fp8gemm import settings
from fp8gemm.jit.presence import keys_of, look
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.report.data import Step, TunedTable
from fp8gemm.lab.report.layers import Layer, Point, predicted
from fp8gemm.quoting import printable
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.table import SHIPPED, read_table


def all_points(layers: Sequence[Layer], rows: Iterable[int], chip: Chip) -> list[Point]:
    """Every layer with each of these rows: those of as many together."""
    return [predicted(layer, m, chip) for m in rows for layer in layers]


def looked_up(points: Sequence[Point]) -> list[Point]:
    """The same, with what the cache directories have of their kernels."""
    requests = [kernel_request(point.problem, point.config) for point in points]
    keys = keys_of(requests)
    there = {keys[key] for key in look(keys).sizes}
    return [
        replace(point, kernel=request.label, ready=request in there)
        for point, request in zip(points, requests, strict=True)
    ]


def steps_of(points: Iterable[Point]) -> list[Step]:
    """The points of as many rows together."""
    by_rows: dict[int, list[Point]] = {}
    for point in points:
        by_rows.setdefault(point.m, []).append(point)
    return [Step(m, tuple(of_m)) for m, of_m in by_rows.items()]


def tables_of(chip: Chip) -> list[TunedTable]:
    """The tuned tables in force, the strongest first."""
    found = []
    own, shipped = settings.current().tables, sorted(SHIPPED.glob("*.json"))
    for path in (*own, *shipped):
        table, place = read_table(path), str(path) if path in own else f"{path.name}, shipped"
        name = table.chip if table.num_sms == chip.num_sms else f"{table.chip}:{table.num_sms}"
        holds = (table.chip, table.num_sms) == (chip.name, chip.num_sms)
        found.append(TunedTable(printable(place), name, table.date, len(table.entries), holds))
    return found
