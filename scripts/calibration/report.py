"""What a calibration says: lines for people, and JSON for `scripts/results.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fp8gemm.terminal.table import Column, Group, Table


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage, without a sign; 0.014 as ``1.4 %``."""
    return f"{100 * share:.{digits}f} %"


def off_by(log_ratio: float) -> float:
    """The share by which a time is off, from the magnitude of the logarithm of its ratio."""
    return math.expm1(log_ratio)


def part_lines(part: Mapping[str, Any]) -> Iterator[str]:
    """Of `judge.judged`: error by M and tile, regret by M, and the worst choices."""
    error, regret = part["error"], part["regret"]
    yield f"{part['name']}: {error['all']['timings']} timings, {part['shapes']} shapes of {part['layers']} N x K"
    yield ""
    table = _table("predicted / measured", "timings", "bias", "median", "p90")
    yield table.header()
    groups = {"all": error["all"], **_named("M ", error["by_m"]), **_named("tile ", error["by_tile"])}
    for name, each in groups.items():
        off = (percent(off_by(each[key])) for key in ("median", "p90"))
        yield table.line(f"  {name}", str(each["timings"]), f"{each['bias']:.3f}", *off)
    yield from _regret_lines("regret of the choice", regret)
    if "selected" in part:
        selected = part["selected"]
        yield from _regret_lines("regret of select", selected)
        if selected["not_measured"]:
            yield _table("").line("  not measured", str(selected["not_measured"]))
    yield ""
    yield "  worst choices"
    worst = Table(Group((Column("", 20, left=True), Column("", 7), Column("", 24, left=True))))
    for each in part["worst"]:
        shape = f"  {each['m']}x{each['n']}x{each['k']}"
        times = f"{each['chosen']} {each['us']:.2f} us, best {each['best']} {each['best_us']:.2f} us"
        yield worst.line(shape, percent(each["regret"]), f" {times}")


def as_text(result: Mapping[str, Any]) -> str:
    """JSON in which every member of an inner object or list has a line of its own."""
    members = [f" {json.dumps(key)}: {_inner(value)}" for key, value in result.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _inner(value: Any) -> str:
    if isinstance(value, dict) and value:
        members = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
        return "{\n" + ",\n".join(members) + "\n }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
    return json.dumps(value)


def _regret_lines(title: str, regret: Mapping[str, Any]) -> Iterator[str]:
    if "all" not in regret:  # nothing that was selected was measured
        return
    yield ""
    table = _table(title, "shapes", "mean", "p95", "max")
    yield table.header()
    for name, each in {"all": regret["all"], **_named("M ", regret["by_m"])}.items():
        yield table.line(f"  {name}", str(each["shapes"]), *(percent(each[key]) for key in ("mean", "p95", "max")))


def _table(title: str, *figures: str) -> Table:
    return Table(Group((Column(f"  {title}", 25, left=True), *(Column(each, 8) for each in figures or [""]))))


def _named(prefix: str, groups: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + name: each for name, each in groups.items()}
