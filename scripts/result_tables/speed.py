"""How fast: beside other libraries, from the first import, and with a K order that does not depend on M."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from result_tables.markdown import MISSING, Result, source, table

PEERS = {
    "bf16": "`torch.mm`, bf16",
    "tensorwise": "`torch._scaled_mm`, per-tensor scales",
    "rowwise": "`torch._scaled_mm`, row-wise scales",
    "cublas_block": "`F.scaled_mm`, block scales",
    "deepgemm": "DeepGEMM",
}
OURS, INVARIANT = "fp8gemm", "invariant"
DETAILED_M = 4096


def bench(result: Result) -> list[str]:
    """Speed relative to each peer: every N x K at one M, and means by M."""
    peers = [peer for peer in PEERS if peer in result["peers"]]
    return [
        source(result, f"torch {result['torch']}", f"driver for CUDA {result['driver_cuda']}")
        + f" {_sentence(result['method'])}",
        "",
        f"Speed of fp8gemm relative to each peer at M = {DETAILED_M} (above 1: fp8gemm is faster):",
        "",
        *_detail(result, peers),
        "",
        "The same by M, geometric mean over the six N x K:",
        "",
        *_means(result, peers),
    ]


def coldstart(result: Result) -> list[str]:
    """One sentence."""
    return [
        f"From `import fp8gemm` to the first result, {result['m']}x{result['n']}x{result['k']}, with torch imported "
        f"and its context made before: {result['cold_ms']:.0f} ms with an empty cache, "
        f"{result['warm_ms']:.0f} ms with a warm one."
    ]


def batch_invariant(result: Result) -> list[str]:
    """What batch invariance costs: time with it over time without, by M and at worst."""
    timed = [row for row in result["rows"] if OURS in row["us"] and INVARIANT in row["us"]]
    rows = []
    for m in dict.fromkeys(row["m"] for row in timed):
        of_m = [row for row in timed if row["m"] == m]
        mean = math.exp(sum(math.log(_price(row)) for row in of_m) / len(of_m))
        worst = max(of_m, key=_price)
        rows.append([str(m), f"{mean:.2f}", f"{_price(worst):.2f}", f"{worst['n']} x {worst['k']}"])
    worst = max(timed, key=_price)
    count = len({(row["n"], row["k"]) for row in timed})
    return [
        source(result, f"torch {result['torch']}") + f" {_sentence(result['method'])}",
        "",
        f"Time with the batch-invariant choice over time without it, {count} N x K:",
        "",
        *table(["M", "geometric mean", "worst", "at N x K"], rows),
        "",
        f"Worst of all: {worst['m']}x{worst['n']}x{worst['k']}, {worst['us'][INVARIANT]:.1f} against "
        f"{worst['us'][OURS]:.1f} µs.",
    ]


def _price(row: dict[str, Any]) -> float:
    return float(row["us"][INVARIANT] / row["us"][OURS])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _detail(result: Result, peers: Sequence[str]) -> list[str]:
    rows = []
    for row in result["rows"]:
        if row["m"] == DETAILED_M:
            ours = row["us"][OURS]
            tflops = 2 * row["m"] * row["n"] * row["k"] / ours / 1e6
            ratios = [f"{row['us'][peer] / ours:.2f}" if peer in row["us"] else MISSING for peer in peers]
            rows.append([f"{row['n']} x {row['k']}", row["config"], f"{ours:.1f}", f"{tflops:.0f}", *ratios])
    return table(["N x K", "tile config", "µs", "TFLOPS", *(PEERS[peer] for peer in peers)], rows)


def _means(result: Result, peers: Sequence[str]) -> list[str]:
    rows = [
        [m, *(f"{means[peer]['speed']:.2f}" if peer in means else MISSING for peer in peers)]
        for m, means in sorted(result["geomean_relative_speed"].items(), key=lambda item: int(item[0]))
    ]
    return table(["M", *(PEERS[peer] for peer in peers)], rows)
