"""Prediction error of the cost model, and regret of the choices that rest on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from calibration.figures import error_figures, in_order, m_class, regret_figures
from calibration.timings import Row
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Problem

Predict = Callable[[Row, TileConfig], float]
"""Microseconds of a row's problem, in its regime, under a config."""

Select = Callable[[Problem], TileConfig]

WORST_SHOWN = 10


@dataclass(frozen=True)
class Choice:
    """What was chosen for a shape, beside the best measured candidate."""

    problem: Problem
    chosen: TileConfig
    us: float
    best: TileConfig
    best_us: float

    @property
    def regret(self) -> float:
        """By how much the choice took longer, as a share of the best time."""
        return self.us / self.best_us - 1

    def as_json(self) -> dict[str, Any]:
        """Flat, with labels."""
        problem = self.problem
        sizes: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k}
        chosen = {"chosen": self.chosen.label, "us": self.us, "best": self.best.label, "best_us": self.best_us}
        return sizes | chosen | {"regret": round(self.regret, 4)}


def tile(config: TileConfig) -> str:
    """Label of the tile alone, such as ``256x128``, or ``64x64-k2`` with K shared."""
    return config.label.partition("-s")[0]


def predicted_times(rows: Sequence[Row], predict: Predict) -> list[list[float]]:
    """Predicted microseconds, row by row, in the order of its timings."""
    return [[predict(row, config) for config, _ in row.timings] for row in rows]


def predicted_choices(rows: Sequence[Row], predicted: Sequence[Sequence[float]]) -> list[Choice]:
    """For each shape the measured candidate of least predicted time; of equal ones the first."""
    choices = []
    for row, times in zip(rows, predicted, strict=True):
        index = min(range(len(times)), key=times.__getitem__)
        choices.append(_choice(row, *row.timings[index]))
    return choices


def selected_choices(rows: Sequence[Row], select: Select) -> list[Choice]:
    """For each shape what ``select`` returns, where that was measured."""
    choices = []
    for row in rows:
        chosen = select(row.problem)
        us = next((us for config, us in row.timings if config == chosen), None)
        if us is not None:
            choices.append(_choice(row, chosen, us))
    return choices


def judged(name: str, rows: Sequence[Row], predict: Predict, select: Select | None = None) -> dict[str, Any]:
    """Error, regret and the worst choices over these shapes, as it is written to JSON.

    Args:
        name: what these shapes are called in tables.
        rows: the shapes; not none.
        predict: the model.
        select: the library's choice, to be judged too.
    """
    predicted = predicted_times(rows, predict)
    choices = predicted_choices(rows, predicted)
    worst = sorted(choices, key=lambda choice: choice.regret, reverse=True)[:WORST_SHOWN]
    part: dict[str, Any] = {
        "name": name,
        "shapes": len(rows),
        "layers": len({row.layer for row in rows}),
        "error": _errors(rows, predicted),
        "regret": _regrets(choices),
        "worst": [choice.as_json() for choice in worst if choice.regret > 0],
    }
    if select is not None:
        selected = selected_choices(rows, select)
        part["selected"] = {"not_measured": len(rows) - len(selected)} | (_regrets(selected) if selected else {})
    return part


def scatter(rows: Sequence[Row], predict: Predict) -> dict[str, list[list[float]]]:
    """Measured and predicted microseconds of every timing, by tile, four digits each: enough for a picture."""
    points: dict[str, list[list[float]]] = defaultdict(list)
    for row, times in zip(rows, predicted_times(rows, predict), strict=True):
        for (config, us), time in zip(row.timings, times, strict=True):
            points[tile(config)].append([float(f"{us:.4g}"), float(f"{time:.4g}")])
    return dict(points)


def _choice(row: Row, chosen: TileConfig, us: float) -> Choice:
    best, best_us = min(row.timings, key=lambda timing: timing[1])
    return Choice(row.problem, chosen, us, best, best_us)


def _errors(rows: Sequence[Row], predicted: Sequence[Sequence[float]]) -> dict[str, Any]:
    everything: list[float] = []
    by_m: dict[str, list[float]] = defaultdict(list)
    by_tile: dict[str, list[float]] = defaultdict(list)
    for row, times in zip(rows, predicted, strict=True):
        for (config, us), time in zip(row.timings, times, strict=True):
            log_ratio = math.log(time / us)
            everything.append(log_ratio)
            by_m[m_class(row.problem.m)].append(log_ratio)
            by_tile[tile(config)].append(log_ratio)
    return {
        "all": error_figures(everything),
        "by_m": {name: error_figures(by_m[name]) for name in in_order(list(by_m))},
        "by_tile": {name: error_figures(of_tile) for name, of_tile in by_tile.items()},
    }


def _regrets(choices: Sequence[Choice]) -> dict[str, Any]:
    by_m: dict[str, list[float]] = defaultdict(list)
    for choice in choices:
        by_m[m_class(choice.problem.m)].append(choice.regret)
    return {
        "all": regret_figures([choice.regret for choice in choices]),
        "by_m": {name: regret_figures(by_m[name]) for name in in_order(list(by_m))},
        "each": sorted(round(choice.regret, 4) for choice in choices),
    }
