"""Few rows: beside the time that reading the weight takes, and beside other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fp8gemm.lab.bench.peers import FLOORS, OURS, OURS_PDL
from result_tables.markdown import MISSING, Result, table
from result_tables.speed import PEERS, bench_source, spread

NAMES = {
    OURS: "fp8gemm",
    OURS_PDL: "fp8gemm, PDL",
    "bf16": PEERS["bf16"],
    "tensorwise": PEERS["tensorwise"],
    "cublas_block": PEERS["cublas_block"],
    "deepgemm": PEERS["deepgemm"],
    "deepgemm_pdl": f"{PEERS['deepgemm']}, PDL",
    "floor": "floor",
    "floor_pdl": "floor, PDL",
}


def small_m(result: Result) -> list[str]:
    """By M: time over the floor's and speed relative to the peers; then the microseconds of every shape."""
    rows = result["rows"]
    timed = [name for name in NAMES if any(name in row["us"] for row in rows)]
    others = [name for name in timed if name not in (*FLOORS, *FLOORS.values())]
    ratios = [*FLOORS.items(), *((peer, OURS_PDL) for peer in others)]
    heads = [f"{NAMES[ours]}: time over {NAMES[floor]}" for ours, floor in FLOORS.items()]
    heads += [f"speed relative to {NAMES[peer]}" for peer in others]
    by_m = [
        [str(m), *(spread(_ratios(rows, m, over, under)) for over, under in ratios)]
        for m in sorted({row["m"] for row in rows})
    ]
    each = [
        [f"{row['n']} x {row['k']}", str(row["m"]), row["config"], *(_us(row, name) for name in timed)]
        for row in sorted(rows, key=lambda row: (row["n"], row["k"], row["m"]))
    ]
    return [
        bench_source(result),
        "",
        "The floor is a kernel that reads the weight into shared memory once and does nothing else. PDL is "
        "programmatic dependent launch of a weight that does not change. Speeds are those of fp8gemm with PDL; "
        f"geometric means over {len({(row['n'], row['k']) for row in rows})} N x K, and the least and the largest.",
        "",
        *table(["M", *heads], by_m),
        "",
        "Microseconds:",
        "",
        *table(["N x K", "M", "tile config", *(NAMES[name] for name in timed)], each),
    ]


def _ratios(rows: Sequence[dict[str, Any]], m: int, over: str, under: str) -> list[float]:
    return [row["us"][over] / row["us"][under] for row in rows if row["m"] == m and {over, under} <= row["us"].keys()]


def _us(row: dict[str, Any], name: str) -> str:
    return f"{row['us'][name]:.1f}" if name in row["us"] else MISSING
