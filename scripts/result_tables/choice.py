"""How well tiles are chosen: the cost model on measured sweeps, and the choice over random shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibration.figures import in_order, m_class, regret_figures
from calibration.report import off_by, percent

from result_tables.markdown import MISSING, Result, source, table, whole
from result_tables.speed import PEERS, spread

ALL = "all"
ROWS = (("8 to 32", range(1, 48)), ("48 to 192", range(48, 256)), ("256 to 1024", range(256, 2048)))
"""Classes of M that what starts ahead is shown by."""


def calibration(result: Result) -> list[str]:
    """Error of the predicted times and regret of the choice, by part and class of M."""
    several = len(result["parts"]) > 1
    rows = [
        [*[part["name"]] * several, name, *_errors(part["error"], name), *_regrets(part["regret"], name)]
        for part in result["parts"]
        for name in [ALL, *part["error"]["by_m"]]
    ]
    heads = ["M", "timings", "bias", "median error", "90 % within", "shapes", "regret", "95 % within", "worst"]
    timings = sum(part["error"]["all"]["timings"] for part in result["parts"])
    parts = ", ".join(f"{part['layers']} N x K{several * ' '}{several * part['name']}" for part in result["parts"])
    selected = [
        f"The choice of `select` itself, {part['name']} N x K: regret "
        f"{', '.join(_regrets(part['selected'], ALL)[1:])} (mean, 95 % within, worst)."
        for part in result["parts"]
        if "all" in part.get("selected", {})
    ]
    return [
        source(result, f"torch {result['torch']}", f"{whole(timings)} timings", parts),
        "",
        "Error: of the predicted time of every candidate at every shape; bias: geometric mean of predicted over "
        "measured. Regret: time of the candidate predicted to be fastest over the fastest measured one's, less 1.",
        "",
        *table([*["N x K"] * several, *heads], rows),
        *([""] * bool(selected) + selected),
    ]


def random_shapes(result: Result) -> list[str]:
    """`shapes` that were drawn at random."""
    return shapes(result, "random shapes")


def shapes(result: Result, kind: str = "shapes") -> list[str]:
    """Regret of the choice, and its speed relative to each peer, by class of M. ``kind``: of what shapes."""
    timed = [row for row in result["rows"] if row["choice"] in row["us"]]
    peers = [peer for peer in PEERS if any(peer in row.get("peers", {}) for row in timed)]
    classes = in_order([m_class(row["m"]) for row in timed])
    rows = [_random_row(name, [row for row in timed if m_class(row["m"]) == name], peers) for name in classes]
    missing = len(result["rows"]) - len(timed)
    count = f"{whole(len(timed))} {kind}"
    heads = ["M", "shapes", "regret", "95 % within", "worst"]
    return [
        source(result, f"torch {result['torch']}", count) + f" {result['method'][0].upper()}{result['method'][1:]}.",
        "",
        "Regret: time of the choice over the fastest measured candidate's, less 1. Speed: of the choice relative to a "
        "peer's, above 1 where fp8gemm is faster: geometric mean, and from the least to the largest; then at how many "
        "shapes it is as fast or faster.",
        "",
        *table(
            [*heads, *(head for peer in peers for head in (PEERS[peer], "as fast at"))],
            [*rows, _random_row(ALL, timed, peers)],
        ),
        *(["", f"Shapes at which the choice was not measured: {missing}."] if missing else []),
    ]


def dependent_launch(result: Result) -> list[str]:
    """How much faster it is to start ahead of the end of the kernel before, than behind it: always, and by the rule."""
    heads = ["M", "shapes", *(f"{way}, {who}" for way in ("products", "behind a quantiser") for who in ("all", "rule"))]
    cells = [
        [name, whole(len(rows)), *(spread(_ahead(rows, way, rule)) for way in _WAYS for rule in (False, True))]
        for name, of in ROWS
        if (rows := [row for row in result["rows"] if row["m"] in of])
    ]
    weights = len({(row["n"], row["k"]) for row in result["rows"]})
    return [
        source(result, f"torch {result['torch']}", f"{weights} N x K") + f" {result['method']}.",
        "",
        "Speed of products with a static weight relative to those behind the kernel before them, if all start ahead of "
        "its end, and if those do of which the rule says so: geometric mean, and from the least to the largest.",
        "",
        *table(heads, cells),
    ]


_WAYS = ("products", "quantized")


def _ahead(rows: Sequence[dict[str, Any]], way: str, rule: bool) -> list[float]:
    return [1.0 if rule and row["rule"] == "behind" else row["behind"][way] / row["ahead"][way] for row in rows]


def _random_row(name: str, rows: list[dict[str, Any]], peers: Sequence[str]) -> list[str]:
    regrets = [row["us"][row["choice"]] / min(row["us"].values()) - 1 for row in rows]
    cells = [name, *_regrets({ALL: regret_figures(regrets)}, ALL)]
    for peer in peers:
        speeds = [row["peers"][peer] / row["us"][row["choice"]] for row in rows if peer in row.get("peers", {})]
        as_fast = f"{sum(speed >= 1 for speed in speeds)} of {len(speeds)}" if speeds else MISSING
        cells += [spread(speeds), as_fast]
    return cells


def _errors(error: dict[str, Any], name: str) -> list[str]:
    each = _of(error, name)
    within = (percent(off_by(each[key])) for key in ("median", "p90"))
    return [whole(each["timings"]), f"{each['bias']:.2f}", *within]


def _regrets(regret: dict[str, Any], name: str) -> list[str]:
    each = _of(regret, name)
    return [whole(each["shapes"]), *(percent(each[key]) for key in ("mean", "p95", "max"))]


def _of(figures: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = figures[ALL] if name == ALL else figures["by_m"][name]
    return found
