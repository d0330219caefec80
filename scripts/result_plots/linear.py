"""Linear layers beside bfloat16 ones by M, and a decoder's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from fp8gemm.lab.bench.decoder import PAIRS, PREFILL
from fp8gemm.lab.bench.linear import BF16, OURS
from fp8gemm.lab.pyplot import load_pyplot
from result_plots import canvas

_Row = Mapping[str, Any]


def draw(result: Mapping[str, Any], path: Path) -> None:
    """A thin line per N x K, a thick one for the geometric mean."""
    rows = [row for row in canvas.shown(result) if {BF16, OURS} <= row["us"].keys()]
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 6), layout="constrained")
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in rows):
        of_one = [row for row in rows if (row["n"], row["k"]) == (n, k)]
        _line(axes, of_one, label=f"{n} x {k}", linewidth=1, marker=".")
    _line(axes, rows, label="geometric mean", linewidth=3.5, color="black", marker="o")
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = sorted({row["m"] for row in rows if row["m"] & (row["m"] - 1) == 0})
    axes.set_xticks(ticks, [str(m) for m in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("M")
    axes.set_ylabel("speed of Fp8Linear relative to a bfloat16 layer")
    axes.set_title(f"{result['gpu']}, {result['date']}, torch {result['torch']}", fontsize="medium")
    axes.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    canvas.save(figure, path, result)


def draw_decoder(result: Mapping[str, Any], path: Path) -> None:
    """Bars by step: the speed relative to bfloat16, as written and compiled."""
    rows = result["rows"]
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    timed = {name: pair for name, pair in PAIRS.items() if any(set(pair) <= row["ms"].keys() for row in rows)}
    width = 0.8 / max(len(timed), 1)
    for index, (name, (base, ours)) in enumerate(timed.items()):
        bars = [(at, row["ms"]) for at, row in enumerate(rows) if {base, ours} <= row["ms"].keys()]
        places = [at + (index - (len(timed) - 1) / 2) * width for at, _ in bars]
        drawn = axes.bar(places, [ms[base] / ms[ours] for _, ms in bars], width, label=name)
        axes.bar_label(drawn, fmt="%.2f")
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_xticks(range(len(rows)), [_name(row) for row in rows])
    axes.set_ylabel("speed of FP8 relative to bfloat16")
    axes.set_title(f"{result['gpu']}, {result['date']}, {result['decoder']['layers']} layers", fontsize="medium")
    axes.margins(y=0.15)
    axes.legend(loc="upper right", fontsize="small")
    canvas.save(figure, path, result)


def _name(row: _Row) -> str:
    if row["kind"] == PREFILL:
        return f"prefill,\n{row['tokens']} tokens"
    return f"decode,\nbatch {row['batch']}"


def _line(axes: Any, rows: Sequence[_Row], **style: Any) -> None:
    """The geometric mean of the speeds at each M."""
    by_m: dict[int, list[float]] = {}
    for row in sorted(rows, key=lambda row: int(row["m"])):
        by_m.setdefault(row["m"], []).append(row["us"][BF16] / row["us"][OURS])
    if by_m:
        axes.plot(list(by_m), [geometric_mean(speeds) for speeds in by_m.values()], **style)
