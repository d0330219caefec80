"""A fit of the cost model's constants to measured times: first to the times, then to the choices that they lead to.

Constants are fitted as logarithms of their ratio to the starting value, so they stay positive. The model has maxima
and rounds waves up: the first stage, least squares, takes it for smooth, and the second, a search without derivatives,
does not.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from calibration.timings import Row
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.tuning.config import TileConfig

Constants = Any
"""A frozen dataclass of floats, such as ``fp8gemm.tuning.constants.Constants``."""

SPAN = 4.0
"""A constant may move to this multiple of its starting value, or to one part in as many."""

NEAR = 0.15
"""Excess over the best time at which a candidate counts half as much as the best one: the choice is among the near."""

LEAST_WEIGHT = 0.1
"""What a candidate far from the best still counts for."""

ROBUST = 0.05
"""Errors past this, as logarithms, count less than their square."""

PRIOR = 0.5
"""Pull towards the starting value, by logarithm, so that a constant that the data do not determine stays near it."""

SOFT_CHOICE = 0.01
"""Difference of predicted times, as logarithms, at which the second of two candidates counts a third of the first."""

REGRET_UNIT = 0.01
"""Mean regret that counts as much as errors of ``ROBUST`` everywhere."""


@dataclass(frozen=True)
class Fit:
    """What a fit found; ``cost`` is the objective before, after least squares, and after the search."""

    constants: Constants
    cost: tuple[float, float, float]
    evaluations: int


def require_scipy() -> Any:
    """``scipy.optimize``.

    Raises:
        UnsupportedError: it is not installed; the message says what brings it.
    """
    try:
        return importlib.import_module("scipy.optimize")
    except ImportError as error:
        raise UnsupportedError(
            "--fit: expected scipy, which is not installed; `pip install scipy` brings it"
        ) from error


def fit(
    rows: Sequence[Row],
    predict: Callable[[Row, TileConfig, Constants], float],
    start: Constants,
    *,
    only: Sequence[str] = (),
    evaluations: int = 2500,
) -> Fit:
    """Constants that predict these times, and choose well by them, rounded to three digits.

    Args:
        rows: the shapes to fit on.
        predict: microseconds of a row's problem, in its regime, under a config and constants.
        start: where the fit begins; constants at 0 stay.
        only: names of the constants to fit, all unless given.
        evaluations: of the model over all timings, about; least squares may take half of them.

    Raises:
        InputError: ``only`` names no constant.
        UnsupportedError: scipy is not installed.
    """
    objective = _Objective(rows, predict, start, _free(start, only))
    before = objective.cost(objective.origin)
    squares = objective.least_squares(evaluations // 2)
    searched = objective.search(squares, max(evaluations - objective.evaluations, 1))
    costs = before, objective.cost(squares), objective.cost(searched)
    return Fit(objective.constants(searched, digits=3), costs, objective.evaluations)


def pasted(constants: Constants, before: Constants) -> Iterator[str]:
    """Lines of Python for ``fp8gemm/tuning/constants.py``, in place of its fields."""
    for field in fields(constants):
        value, old = getattr(constants, field.name), getattr(before, field.name)
        words = (json.dumps(field.metadata.get(name, "")) for name in ("unit", "meaning"))
        note = "as it was" if value == old else f"was {old!r}"
        yield f"    {field.name}: float = _constant({', '.join((repr(value), *words))})  # {note}"


def _free(start: Constants, only: Sequence[str]) -> list[str]:
    names = [field.name for field in fields(start)]
    if unknown := [name for name in only if name not in names]:
        raise InputError(f"expected constants among {', '.join(names)}, got {', '.join(unknown)}")
    return [name for name in names if getattr(start, name) > 0 and (not only or name in only)]


class _Objective:
    """Residuals and cost as functions of a vector: the logarithm, for each free constant, of its ratio to the start."""

    def __init__(
        self,
        rows: Sequence[Row],
        predict: Callable[[Row, TileConfig, Constants], float],
        start: Constants,
        names: Sequence[str],
    ) -> None:
        self._optimize = require_scipy()
        self._np: Any = importlib.import_module("numpy")
        np = self._np
        self._predict, self._start, self._names = predict, start, names
        self._calls = [(row, config) for row in rows for config, _ in row.timings]
        self._log_us = np.log([us for row in rows for _, us in row.timings])
        sizes = [len(row.timings) for row in rows]
        self._first = np.cumsum([0, *sizes[:-1]])
        self._row = np.repeat(np.arange(len(rows)), sizes)
        self._excess = np.expm1(self._log_us - np.minimum.reduceat(self._log_us, self._first)[self._row])
        weights = LEAST_WEIGHT + (1 - LEAST_WEIGHT) / (1 + (self._excess / NEAR) ** 2)
        self._root_weights = np.sqrt(weights / weights.sum())
        self.origin = np.zeros(len(names))
        tops = [_top(start, name) for name in names]
        self._bounds = np.full(len(names), -math.log(SPAN)), np.array(tops)
        self.evaluations = 0

    def constants(self, vector: Any, *, digits: int | None = None) -> Constants:
        """The constants at that vector."""
        values = {}
        for name, logarithm in zip(self._names, vector, strict=True):
            value = getattr(self._start, name) * math.exp(logarithm)
            values[name] = value if digits is None else float(f"{value:.{digits}g}")
        return replace(self._start, **values)

    def cost(self, vector: Any) -> float:
        """What the search makes small: the squares of `_residuals`, and the regret of a soft choice."""
        log_predicted = self._log_predicted(vector)
        squares = (self._residuals(vector, log_predicted) ** 2).sum()
        return float(squares + self._regret(log_predicted) / REGRET_UNIT)

    def least_squares(self, evaluations: int) -> Any:
        """The vector of least error, regret aside."""
        found = self._optimize.least_squares(
            lambda vector: self._residuals(vector, self._log_predicted(vector)),
            self.origin,
            bounds=self._bounds,
            diff_step=1e-3,
            max_nfev=max(evaluations // (len(self._names) + 1), 1),
        )
        return found.x

    def search(self, vector: Any, evaluations: int) -> Any:
        """A vector of less cost, found without derivatives (Powell), with about this many evaluations."""
        found = self._optimize.minimize(
            self.cost,
            self._np.clip(vector, *self._bounds),
            method="Powell",
            bounds=list(zip(*self._bounds, strict=True)),
            options={"maxfev": evaluations, "xtol": 1e-3, "ftol": 1e-5},
        )
        return found.x if found.fun < self.cost(vector) else vector

    def _log_predicted(self, vector: Any) -> Any:
        self.evaluations += 1
        constants, predict = self.constants(vector), self._predict
        return self._np.log([predict(row, config, constants) for row, config in self._calls])

    def _residuals(self, vector: Any, log_predicted: Any) -> Any:
        """Weighted errors, squares below ``ROBUST`` and straight above (pseudo-Huber), and the pull to the start."""
        np = self._np
        errors = (log_predicted - self._log_us) / ROBUST
        robust = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([self._root_weights * robust, PRIOR / math.sqrt(len(vector)) * vector])

    def _regret(self, log_predicted: Any) -> float:
        """Mean over the shapes of the regret expected of a choice that takes what seems fast with a high chance."""
        np = self._np
        fastest = np.minimum.reduceat(log_predicted, self._first)[self._row]
        chances = np.exp((fastest - log_predicted) / SOFT_CHOICE)
        expected = np.add.reduceat(chances * self._excess, self._first) / np.add.reduceat(chances, self._first)
        return float(expected.mean())


def _top(start: Constants, name: str) -> float:
    """Upper bound of a constant's logarithm; a share of something is at most 1."""
    unit = next(field.metadata.get("unit", "") for field in fields(start) if field.name == name)
    top = math.log(SPAN)
    return min(top, max(-math.log(getattr(start, name)), 1e-3)) if unit == "share" else top
