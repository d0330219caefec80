"""What was checked and what came of it: gates, mutations, faults, the sanitizer's tools, stress."""

from __future__ import annotations

from itertools import product
from statistics import geometric_mean
from typing import Any

from result_tables.markdown import MISSING, Result, duration, limit, small, source, table, whole

CAUGHT, NOT_OBSERVABLE = "caught", "not observable"
CLEAN = "clean"

Rows = list[dict[str, Any]]


def gates(result: Result) -> list[str]:
    """Gate by data and output: the worst figure of its limit, and the case that came closest."""
    worst = result["worst"]
    outputs = _distinct(worst, "output")
    rows = []
    for gate, data in dict.fromkeys((each["gate"], each["data"]) for each in worst):
        of_one = {each["output"]: each for each in worst if (each["gate"], each["data"]) == (gate, data)}
        cells = [_of_limit(of_one[output]) if output in of_one else MISSING for output in outputs]
        closest = max(of_one.values(), key=_closeness)
        rows.append([gate, data, *cells, f"{closest['case']}, {closest['output']}" if closest["worst"] else MISSING])
    return [
        source(result, f"{whole(result['cases'])} cases in {duration(result['seconds'])}")
        + " Worst figure of the limit, by output type:",
        "",
        *table(["gate", "data", *outputs, "closest to its limit"], rows),
    ]


def mutations(result: Result) -> list[str]:
    """Which test caught each mutant and how; those that cannot be observed, with the reason."""
    caught, unobservable, missed, controls = _judged(result["mutants"])
    lines = [*mutations_summary(result), ""]
    lines += table(
        ["mutant", "what it changes", "caught by", "how"],
        [[each["name"], each["what"], _text(each["caught_by"]), _text(each["how"])] for each in caught],
    )
    if unobservable:
        lines += ["", "Not observable:", ""]
        lines += [f"- {each['name']} ({each['what']}): {each['reason']}" for each in unobservable]
    if missed:
        lines += ["", "**Missed by every test:**", ""]
        lines += [f"- {each['name']} ({each['what']}): {each['result']}" for each in missed]
    if controls:
        lines += ["", "Controls: " + "; ".join(f"{each['what']}: {each['result']}" for each in controls) + "."]
    return lines


def mutations_summary(result: Result) -> list[str]:
    """How many were caught, in one line."""
    caught, unobservable, missed, _ = _judged(result["mutants"])
    total = len(caught) + len(unobservable) + len(missed)
    return [source(result, f"{len(caught)} of {total} mutants caught, {len(unobservable)} not observable")]


def _judged(mutants: Rows) -> tuple[Rows, Rows, Rows, Rows]:
    """Caught, not observable, missed, and controls, which change nothing and show that tests notice the change."""
    caught = [mutant for mutant in mutants if mutant["result"] == CAUGHT]
    unobservable = [mutant for mutant in mutants if mutant["result"] == NOT_OBSERVABLE]
    others = [mutant for mutant in mutants if mutant["result"] not in (CAUGHT, NOT_OBSERVABLE)]
    return (
        caught,
        unobservable,
        [each for each in others if each["files"]],
        [each for each in others if not each["files"]],
    )


def faults(result: Result) -> list[str]:
    """One row per fault of the list."""
    rows = [
        [str(each["number"]), each["what"], _text(each["tests"]), duration(each["seconds"]), each["result"]]
        for each in result["faults"]
    ]
    return [source(result), "", *table(["", "fault", "tests", "time", "result"], rows)]


def sanitize(result: Result) -> list[str]:
    """Kernels down, tools across: clean on how many shapes, or what else was found and where."""
    findings = result["findings"]
    tools = _distinct(findings, "tool")
    rows = []
    for kernel in _distinct(findings, "kernel"):
        cells = []
        for tool in tools:
            of_one = [each for each in findings if (each["tool"], each["kernel"]) == (tool, kernel)]
            cells.append(_findings(of_one))
        rows.append([kernel, *cells])
    lines = [source(result, "compute-sanitizer"), "", *table(["kernel", *tools], rows)]
    return [*lines, "", result["limits"]] if result.get("limits") else lines


def stress(result: Result) -> list[str]:
    """One sentence."""
    hangs, wrong = result["hangs"], result["wrong"]
    outcome = "no hang and no wrong result"
    if hangs or wrong:
        outcome = f"**{_count(hangs)} hangs and {_count(wrong)} wrong results**"
    return [
        f"{whole(result['launches'])} launches of {_count(result['kernels'])} kernels on {_count(result['shapes'])} "
        f"shapes in {duration(result['seconds'])}: {outcome}. {source(result)}"
    ]


def release_order(result: Result) -> list[str]:
    """The call, with other headers and with these, and a row for each family."""
    rows = []
    if other := result.get("other"):
        rows.append([f"the call, headers of {other['headers']}", *_wrong_of(other["calls"])])
        if other["problem"]:
            rows[-1][-1] = other["problem"]
    rows.append(["the call", *_wrong_of(result["calls"])])
    rows += [[f"{each['family']}, {each['kernels']} kernels", *_wrong_of([each])] for each in result["families"]]
    said = source(result, f"NVRTC {result['nvrtc']}", f"commit {result['commit']}")
    return [said, "", *table(["", "launches", "wrong", "time"], rows)]


def compare_headers(result: Result) -> list[str]:
    """How fast the kernels are beside those of other headers, by regime: mean, and from the least to the largest."""
    rows = []
    for regime, other in product(("turns", "burst", "sustained"), result["rows"][0]["us"]["turns"]):
        timed = [times for row in result["rows"] if other in (times := row["us"].get(regime, {}))]
        ratios = [times[other] / times["new"] for times in timed]
        if ratios and other != "new":
            mean = geometric_mean(ratios)
            rows.append([regime, other, f"{mean:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}", str(len(ratios))])
    said = source(result, f"NVRTC {result['nvrtc']}", f"commit {result['commit']}")
    bits = "all" if all(row["same_bits"] for row in result["rows"]) else "**not all**"
    heads = ["regime", "time of, over that of these kernels", "mean", "from, to", "products"]
    return [f"{said} Of these {bits} have the same bits with either headers.", "", *table(heads, rows)]


def ablations(result: Result) -> list[str]:
    """What is left of a kernel's time without one of its parts, by product and regime."""
    parts = [name for name in result["rows"][0]["us"]["burst"] if name not in ("new", "deepgemm")]
    rows = []
    for row in result["rows"]:
        _, size, label, *_ = row["case"].split()
        for regime, us in row["us"].items():
            left = [f"{us[part] / us['new']:.2f}" for part in parts]
            rows.append([size, label, regime, f"{us['new']:.1f}", *left, f"{us['deepgemm'] / us['new']:.2f}"])
    heads = ["M x N x K", "tile config", "regime", "µs", *(part.replace("-", " ") for part in parts), "DeepGEMM"]
    said = source(result, f"NVRTC {result['nvrtc']}", f"commit {result['commit']}")
    return [f"{said} Times over that of the whole kernel.", "", *table(heads, rows)]


def _wrong_of(rows: list[dict[str, Any]]) -> list[str]:
    launches, wrong, seconds = (sum(each[name] for each in rows) for name in ("launches", "wrong", "seconds"))
    return [whole(launches), f"**{whole(wrong)}**" if wrong else "0", duration(seconds)]


def _of_limit(each: dict[str, Any]) -> str:
    return f"{small(each['worst'])} of {limit(each['limit'])}" if each["limit"] else small(each["worst"])


def _closeness(each: dict[str, Any]) -> float:
    return float(each["worst"] / each["limit"]) if each["limit"] else float(each["worst"])


def _findings(findings: list[dict[str, Any]]) -> str:
    if not findings:
        return MISSING
    dirty = [f"{each['shape']}: {each['status']}" for each in findings if each["status"] != CLEAN]
    shapes = "shape" if len(findings) == 1 else "shapes"
    return "; ".join(dirty) if dirty else f"{CLEAN}, {len(findings)} {shapes}"


def _distinct(rows: list[dict[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _text(value: Any) -> str:
    """Names in backquotes where there are several; None as a dash."""
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in value)
    return MISSING if value is None else str(value)


def _count(value: Any) -> str:
    """A number, or how many a list has."""
    return whole(len(value) if isinstance(value, list) else value)
