"""Timings of a tuning run, in memory and in a file that a later run goes on with. Nothing here touches a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from fp8gemm.errors import InputError
from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.bench.timing import rounded
from fp8gemm.quoting import quoted, quoted_path
from fp8gemm.reading import Kind, read_json
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import Config
from fp8gemm.writing import write_text

P = TypeVar("P", Problem, GroupedProblem)

_MUST_AGREE = {"gpu": None, "chip": None, "num_sms": None, "static_weights": False, "regime": Regime.TURN.value}
"""What the heading of a file must share with the run that adds to it, and what it means where a heading does not say:
times of other chips, of another kind of launch or at another clock do not compare."""

FILE = Kind("results of fp8gemm tune", 64 << 20)


@dataclass(frozen=True)
class Work(Generic[P]):
    """What is to be timed for a shape, or for a size of groups.

    Attributes:
        problem: the product, or those of groups.
        candidates: by label, the model's first one first.
        choice, model: labels of what is chosen, and of what would be without tables.
    """

    problem: P
    candidates: dict[str, Config]
    choice: str
    model: str

    @property
    def shape(self) -> Shape:
        """Its sizes, or those of a typical group's product."""
        return Shape(self.problem.m, self.problem.n, self.problem.k)


@dataclass(frozen=True)
class Row:
    """What is known of one shape.

    Attributes:
        us: median microseconds per call, by label of the config.
        peers: the same of others' kernels, by name.
        failed: reason, by label or name, of those that have no time.
        choice: label of what `select` chooses, with the tables in force.
        model: label of what it chooses without tables.
    """

    shape: Shape
    us: dict[str, float] = field(default_factory=dict)
    peers: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    choice: str = ""
    model: str = ""

    @property
    def best(self) -> str | None:
        """Label of the fastest config; None without any time."""
        return min(self.us, key=self.us.__getitem__, default=None)

    @property
    def regret(self) -> float | None:
        """What the choice costs over the fastest, 0 for nothing. None unless the choice was timed."""
        return self.us[self.choice] / min(self.us.values()) - 1 if self.choice in self.us else None

    def speed_relative_to(self, peer: str) -> float | None:
        """The choice's speed over the peer's: above 1 we are faster. None unless both were timed."""
        return self.peers[peer] / self.us[self.choice] if peer in self.peers and self.choice in self.us else None

    def missing(self, wanted: Sequence[str]) -> list[str]:
        """Those of the labels and names that were neither timed nor failed."""
        return [name for name in wanted if name not in self.us.keys() | self.peers.keys() | self.failed.keys()]

    def only(self, labels: Collection[str]) -> Row:
        """The same without the configs that are not among ``labels``, such as candidates of another version."""
        return replace(self, us={label: us for label, us in self.us.items() if label in labels})

    def as_json(self) -> dict[str, Any]:
        """M, N and K, and all else under the attributes' names."""
        row: dict[str, Any] = {"m": self.shape.m, "n": self.shape.n, "k": self.shape.k}
        row |= {"us": rounded(self.us, 3), "peers": rounded(self.peers, 3)}
        return row | ({"failed": self.failed} if self.failed else {}) | {"choice": self.choice, "model": self.model}


class Results:
    """Rows by shape, with a heading.

    Args:
        heading: what the file says besides the rows.
        path: the file, which may exist; None for none.

    Raises:
        InputError: the file is not one of these, or is of another chip.
    """

    def __init__(self, heading: Mapping[str, Any], path: Path | None = None) -> None:
        self._heading, self._path = dict(heading), path
        self._rows: dict[Shape, Row] = {}
        if path is None or not os.path.exists(path):
            return
        found = _read(path)
        for name, unsaid in _MUST_AGREE.items():
            expected, got = heading.get(name, unsaid), found.get(name, unsaid)
            if expected != got:
                raise InputError(f"{quoted_path(path)}: expected times of {name} {expected!r}, got {quoted(got)}")
        for index, row in enumerate(found["rows"]):
            made = _row(row, f"{quoted_path(path)}: row {index}")
            self._rows[made.shape] = made

    def row(self, shape: Shape, *, choice: str, model: str) -> Row:
        """What is known of a shape, under the choice as it is now."""
        return replace(self._rows.get(shape, Row(shape)), choice=choice, model=model)

    def add(self, row: Row) -> None:
        """Keep a row in place of an earlier one, and write the file."""
        self._rows[row.shape] = row
        self.write()

    def write(self) -> None:
        """Replace the file in one step."""
        if self._path is not None:
            # A row a line: a thousand shapes remain readable, and comparable.
            rows = ",\n".join(f"  {json.dumps(row.as_json())}" for row in self._rows.values())
            text = json.dumps(self._heading, indent=1)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n'
            write_text(self._path, text)


def recorded_seed(path: Path | None) -> int | None:
    """The seed of the run that a file is of; None without a file, or in one without a seed."""
    if path is None or not os.path.exists(path):
        return None
    seed = _read(path).get("seed")
    return seed if type(seed) is int else None


def merged(row: Row, us: Mapping[str, float], peers: Mapping[str, float], failed: Mapping[str, str]) -> Row:
    """A row with further times; one that had failed and now has a time has not failed."""
    reasons = {name: reason for name, reason in {**row.failed, **failed}.items() if name not in {**us, **peers}}
    return replace(row, us={**row.us, **us}, peers={**row.peers, **peers}, failed=reasons)


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path, FILE)
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise FILE.unfit(path, f'no object with "rows" but {quoted(found)}')
    return found


def _row(found: Any, where: str) -> Row:
    try:
        shape = Shape(*(int(found[name]) for name in ("m", "n", "k")))
        us, peers = ({str(k): float(v) for k, v in found.get(name, {}).items()} for name in ("us", "peers"))
        failed = {str(k): str(v) for k, v in found.get("failed", {}).items()}
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{where}: expected m, n, k and microseconds by config, got {quoted(found)}") from error
    if not all(0 < time < float("inf") for time in [*us.values(), *peers.values()]):
        raise InputError(f"{where}: expected positive times, got {quoted(found)}")
    return Row(shape, us, peers, failed)
