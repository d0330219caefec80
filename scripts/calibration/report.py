"""What a calibration says: lines for people, and JSON for `scripts/results.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any


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
    yield f"  {'predicted / measured':<24}{'timings':>8}{'bias':>9}{'median':>9}{'p90':>9}"
    groups = {"all": error["all"], **_named("M ", error["by_m"]), **_named("tile ", error["by_tile"])}
    for name, each in groups.items():
        off = "".join(f"{percent(off_by(each[key])):>9}" for key in ("median", "p90"))
        yield f"  {name:<24}{each['timings']:>8}{each['bias']:>9.3f}{off}"
    yield from _regret_lines("regret of the choice", regret)
    if "selected" in part:
        selected = part["selected"]
        yield from _regret_lines("regret of select", selected)
        if selected["not_measured"]:
            yield f"  {'not measured':<24}{selected['not_measured']:>8}"
    yield ""
    yield "  worst choices"
    for each in part["worst"]:
        shape = f"{each['m']}x{each['n']}x{each['k']}"
        yield (
            f"  {shape:<18}{percent(each['regret']):>8}  {each['chosen']} {each['us']:.2f} us, "
            f"best {each['best']} {each['best_us']:.2f} us"
        )


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
    yield f"  {title:<24}{'shapes':>8}{'mean':>9}{'p95':>9}{'max':>9}"
    for name, each in {"all": regret["all"], **_named("M ", regret["by_m"])}.items():
        figures = "".join(f"{percent(each[key]):>9}" for key in ("mean", "p95", "max"))
        yield f"  {name:<24}{each['shapes']:>8}{figures}"


def _named(prefix: str, groups: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + name: each for name, each in groups.items()}
