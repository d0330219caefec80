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
from dataclasses import MISSING, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from fp8gemm.errors import InputError
from fp8gemm.quoting import cut, quoted, quoted_path
from fp8gemm.reading import Kind, parse_json, read_lines
from fp8gemm.sizes import check_norm_depth
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.problem import Grouping, Problem

_T = TypeVar("_T")

FILE = Kind("a file that FP8GEMM_RECORD wrote", 64 << 20)
_LONGEST_LINE = 4096

_largest: dict[tuple[Path, object], int] = {}
"""By file and by what was asked for: the M that stands there."""


def record_problem(path: Path, problem: AnyProblem) -> None:
    """Note that a GEMM was asked for, unless the file has it from this process for as many rows, as choices count."""
    m = problem.counted_m
    _note(path, replace(problem, m=0), m, lambda: {_kind(problem): _as_json(replace(problem, m=m))})


def record_quantizer(path: Path, family: str, config: Mapping[str, object]) -> None:
    """Note that a quantiser was asked for, once."""
    constants = {name: value.value if isinstance(value, Enum) else value for name, value in config.items()}
    _note(path, (family, *constants.items()), 0, lambda: {"quantizer": family, "config": constants})


def recorded(path: Path) -> tuple[list[AnyProblem], list[tuple[str, dict[str, Any]]]]:
    """What a file says: each problem with the largest M that it was asked for, and quantisers by family and constants.

    Raises:
        InputError: it cannot be read, is too large, or a line is not as above.
    """
    problems: dict[AnyProblem, int] = {}
    quantizers: dict[str, tuple[str, dict[str, Any]]] = {}
    for number, line in enumerate(read_lines(path, FILE, _LONGEST_LINE), 1):
        try:
            row = _typed("the line", dict, parse_json(line.encode()))
            kind = next((name for name in _PROBLEMS if name in row), None)
            if kind is not None:
                problem = _from_json(_PROBLEMS[kind], _typed(kind, dict, row[kind]))
                alike = replace(problem, m=0)
                problems[alike] = max(problem.m, problems.get(alike, 0))
            else:
                family = _typed("quantizer", str, row.get("quantizer"))
                quantizers[line] = family, _constants(_typed("config", dict, row.get("config")))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{quoted_path(path)}:{number}: expected a line that FP8GEMM_RECORD wrote: {error}"
            ) from error
    return [replace(problem, m=m) for problem, m in problems.items()], list(quantizers.values())


def _note(path: Path, what: object, m: int, row: Any) -> None:
    if _largest.get((path, what), -1) >= m:
        return
    _largest[path, what] = m
    try:
        # O_NONBLOCK: of a FIFO that nobody reads the opening would wait for ever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o644)
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
    types: dict[str, type] = {
        field.name: int if field.default is MISSING else type(field.default) for field in fields(kind)
    }
    types["grouping"] = Grouping
    if unknown := values.keys() - types.keys():
        raise ValueError(f"expected no fields but {', '.join(types)}; found {quoted(min(unknown))}")
    return kind(**{name: _typed(name, types[name], value) for name, value in values.items()})


def _constants(config: dict[str, Any]) -> dict[str, Any]:
    """Those of a quantiser; ValueError if they can be those of none."""
    for name, value in config.items():
        if type(value) not in (bool, int, str):
            raise ValueError(
                f"expected {cut(name)} to be true, false, a whole number or a string; found {quoted(value)}"
            )
    if "k" in config:
        check_norm_depth("a norm", _typed("k", int, config["k"]))  # K is compiled into no other quantiser
    return config


def _typed(name: str, kind: type[_T], value: object) -> _T:
    """A value of JSON as what it has to be; ValueError if it is not."""
    if issubclass(kind, Enum):
        members = {each.value: each for each in kind}
        if isinstance(value, str) and value in members:
            return members[value]
        expected = f"one of {', '.join(members)}"
    elif type(value) is kind:
        return value
    else:
        expected = {bool: "true or false", int: "a whole number", str: "a string", dict: "an object"}[kind]
    raise ValueError(f"expected {name} to be {expected}; found {quoted(value)}")
