"""Speed beside the peers by M, from `scripts/bench.py --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from result_tables.speed import OURS, PEERS

from fp8gemm.lab.pyplot import load_pyplot
from result_plots import canvas

BASELINE = "tensorwise"
LEAST_M = 512

_Row = Mapping[str, Any]


def draw(result: Mapping[str, Any], path: Path) -> None:
    """A thin line per N x K, a thick one for our geometric mean, dashed ones for the other peers'."""
    rows = [row for row in canvas.shown(result) if row["m"] >= LEAST_M and BASELINE in row["us"]]
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 7.5), layout="constrained")
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in rows):
        of_one = [row for row in rows if (row["n"], row["k"]) == (n, k)]
        _line(axes, of_one, OURS, label=f"fp8gemm, {n} x {k}", linewidth=1, marker=".")
    _line(axes, rows, OURS, label="fp8gemm, geometric mean", linewidth=3.5, color="black", marker="o")
    for peer in PEERS:
        if peer != BASELINE and peer in result["peers"]:
            name = PEERS[peer].replace("`", "")
            _line(axes, rows, peer, label=f"{name}, geometric mean", linewidth=1.5, linestyle="--")
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = sorted({row["m"] for row in rows})
    axes.set_xticks(ticks, [str(m) for m in ticks])
    axes.minorticks_off()
    axes.set_xlabel("M")
    axes.set_ylabel("speed relative to cuBLASLt with one scale per tensor")
    alone = ", each alone under sustained load" if any(row.get("regime") == "sustained" for row in rows) else ""
    axes.set_title(f"{result['gpu']}, {result['date']}, torch {result['torch']}{alone}", fontsize="medium")
    axes.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    canvas.save(figure, path, result)


def _line(axes: Any, rows: Sequence[_Row], name: str, **style: Any) -> None:
    """The speed of ``name`` relative to the baseline at each M where it was timed."""
    by_m: dict[int, list[float]] = {}
    for row in sorted(rows, key=lambda row: int(row["m"])):
        if name in row["us"]:
            by_m.setdefault(row["m"], []).append(row["us"][BASELINE] / row["us"][name])
    if by_m:
        axes.plot(list(by_m), [geometric_mean(speeds) for speeds in by_m.values()], **style)
