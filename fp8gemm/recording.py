"""``FP8GEMM_RECORD``: what a process asked kernels for, as lines that `fp8gemm warmup --recorded` reads.

A line is a JSON object: the problem of a GEMM or of a grouped one with the largest M so far, or a quantiser's family
and constants. Each is one write to the end of the file, so that many processes may share one; nobody reads it while
serving.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from fp8gemm.errors import InputError
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Grouping, Problem, counted_rows

AnyProblem = Problem | GroupedProblem

_largest: dict[tuple[Path, object], int] = {}
"""By file and by what was asked for: the M that stands there."""


def record_problem(path: Path, problem: AnyProblem) -> None:
    """Note that a GEMM was asked for, unless the file has it from this process for as many rows, as choices count."""
    m = counted_rows(problem.m)
    _note(path, replace(problem, m=0), m, lambda: {_kind(problem): _as_json(replace(problem, m=m))})


def record_quantizer(path: Path, family: str, config: Mapping[str, object]) -> None:
    """Note that a quantiser was asked for, once."""
    constants = {name: value.value if isinstance(value, Enum) else value for name, value in config.items()}
    _note(path, (family, *constants.items()), 0, lambda: {"quantizer": family, "config": constants})


def recorded(path: Path) -> tuple[list[AnyProblem], list[tuple[str, dict[str, Any]]]]:
    """What a file says: each problem with the largest M that it was asked for, and quantisers by family and constants.

    Raises:
        InputError: it cannot be read, or a line is not as above.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a file that FP8GEMM_RECORD wrote: {error}") from error
    problems: dict[AnyProblem, int] = {}
    quantizers: dict[str, tuple[str, dict[str, Any]]] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            kind = next((name for name in _PROBLEMS if name in row), None)
            if kind is not None:
                problem = _from_json(_PROBLEMS[kind], row[kind])
                alike = replace(problem, m=0)
                problems[alike] = max(problem.m, problems.get(alike, 0))
            else:
                quantizers[line] = str(row["quantizer"]), dict(row["config"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}:{number}: expected a line that FP8GEMM_RECORD wrote: {error}") from error
    return [replace(problem, m=m) for problem, m in problems.items()], list(quantizers.values())


def _note(path: Path, what: object, m: int, row: Any) -> None:
    if _largest.get((path, what), -1) >= m:
        return
    _largest[path, what] = m
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, (json.dumps(row()) + "\n").encode())
        finally:
            os.close(descriptor)
    except OSError as error:  # what is served must not fail for it
        warnings.warn(f"FP8GEMM_RECORD: {path} cannot be written: {error}", RuntimeWarning, stacklevel=2)


_PROBLEMS: dict[str, type[AnyProblem]] = {"gemm": Problem, "grouped": GroupedProblem}
"""By what leads a line."""


def _kind(problem: AnyProblem) -> str:
    return next(name for name, kind in _PROBLEMS.items() if type(problem) is kind)


def _as_json(problem: AnyProblem) -> dict[str, Any]:
    values = {field.name: getattr(problem, field.name) for field in fields(problem)}
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def _from_json(kind: type[AnyProblem], values: Mapping[str, Any]) -> AnyProblem:
    """The problem; TypeError or ValueError if it is none."""
    types: dict[str, type[Enum]] = {
        field.name: type(field.default) for field in fields(kind) if isinstance(field.default, Enum)
    }
    types["grouping"] = Grouping
    made: dict[str, Any] = {name: types[name](value) if name in types else value for name, value in values.items()}
    sizes = [name for name in ("groups", "m", "n", "k") if name in kind.__dataclass_fields__]
    if not all(type(made[name]) is int for name in sizes):
        raise ValueError(f"{', '.join(sizes)} are whole numbers; found {values}")
    return kind(**made)
