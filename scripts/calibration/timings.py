"""Measured sweeps: what the candidate configs took, shape by shape."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8gemm.errors import InputError
from fp8gemm.lab.bench.regimes import Regime, parse_regime
from fp8gemm.tuning.candidates import DEEP_RING_K, candidate_configs, why_last
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Problem, StoreKind


@dataclass(frozen=True)
class Row:
    """One shape in one regime; ``timings`` are pairs of a candidate and its microseconds, in the candidates' order."""

    problem: Problem
    timings: tuple[tuple[TileConfig, float], ...]
    regime: Regime = Regime.TURN

    @property
    def layer(self) -> tuple[int, int]:
        """N and K."""
        return self.problem.n, self.problem.k


@dataclass(frozen=True)
class Sweep:
    """What was measured on one GPU.

    Attributes:
        heading: ``gpu``, and the distinct ``regime``, ``date``, ``torch`` and ``method`` of the files.
        rows: every shape and regime with a timing of a known candidate.
        unknown: timings that were left out, by label: of no candidate of today, or of one for other shapes.
    """

    heading: dict[str, str]
    rows: tuple[Row, ...]
    unknown: Counter[str]

    @property
    def timings(self) -> int:
        """How many there are."""
        return sum(len(row.timings) for row in self.rows)


def read_sweeps(paths: Sequence[Path], chip: Chip, *, least_m: int = 1) -> Sweep:
    """The rows of all files that have at least ``least_m`` rows, with the timings of what may be chosen on the chip.

    Raises:
        InputError: a file cannot be read, is no sweep, holds a time that is none, is of another GPU than the others or
            in no known regime, or none is left.
    """
    candidates = {config.label: config for config in candidate_configs(StoreKind.TMA, k=DEEP_RING_K)}
    rows: list[Row] = []
    unknown: Counter[str] = Counter()
    results = [_read(path) for path in paths]
    gpus = list(dict.fromkeys(str(result["gpu"]) for result in results))
    if len(gpus) != 1:
        raise InputError(f"expected sweeps of one GPU, got {' and '.join(gpus) or 'none'}")
    regimes = [parse_regime(str(result.get("regime", Regime.TURN.value))) for result in results]
    for path, result, regime in zip(paths, results, regimes, strict=True):
        for each in (each for each in result["rows"] if each["m"] >= least_m):
            row = _row(each, candidates, chip, path, regime)
            unknown.update(each["us"].keys() - {config.label for config, _ in row.timings})
            if row.timings:
                rows.append(row)
    if not rows:
        raise InputError(f"expected timings of {', '.join(candidates)}, got {', '.join(unknown) or 'none'}")
    heading = {"gpu": gpus[0], "regime": "; ".join(dict.fromkeys(regime.value for regime in regimes))} | {
        key: "; ".join(dict.fromkeys(str(result.get(key, "unknown")) for result in results))
        for key in ("date", "torch", "commit", "headers", "method")
    }
    return Sweep(heading, tuple(rows), unknown)


def split(rows: Iterable[Row], fraction: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Rows to fit on, and rows held out: about ``fraction`` of the (N, K), with all their M; at least one each.

    Raises:
        InputError: there is only one (N, K), or none.
    """
    rows = list(rows)
    layers = sorted({row.layer for row in rows})
    if len(layers) < 2:
        raise InputError(f"expected at least two N x K to hold some out, got {len(layers)}")
    random.Random(seed).shuffle(layers)
    held_out = set(layers[: min(max(round(fraction * len(layers)), 1), len(layers) - 1)])
    return [row for row in rows if row.layer not in held_out], [row for row in rows if row.layer in held_out]


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"expected a sweep in JSON, got {path}: {error}") from error
    if not isinstance(result, dict) or not {"gpu", "rows"} <= result.keys():
        raise InputError(f"expected a sweep, with gpu and rows, got {path}")
    return result


def _row(each: dict[str, Any], candidates: dict[str, TileConfig], chip: Chip, path: Path, regime: Regime) -> Row:
    us = each["us"]
    for label, time in us.items():
        if not (isinstance(time, (int, float)) and 0 < time < math.inf):
            raise InputError(f"{path}: expected microseconds, got {time!r} for {label} at {each['m']} rows")
    problem = Problem(each["m"], each["n"], each["k"])
    measured = [(config, float(us[label])) for label, config in candidates.items() if label in us]
    return Row(problem, tuple(timing for timing in measured if not why_last(problem, timing[0], chip)), regime)
