"""How fast: beside other libraries, and with a K order that does not depend on M."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from result_tables.markdown import MISSING, Result, by_m, source, table

PEERS = {
    "bf16": "`torch.mm`, bf16",
    "tensorwise": "`torch._scaled_mm`, per-tensor scales",
    "rowwise": "`torch._scaled_mm`, row-wise scales",
    "cublas_block": "`F.scaled_mm`, block scales",
    "deepgemm": "DeepGEMM",
}
OURS, INVARIANT = "fp8gemm", "invariant"


def bench(result: Result) -> list[str]:
    """Speed relative to each peer by M: mean, and the range over the N x K."""
    peers = _peers(result)
    layers = len({(row["n"], row["k"]) for row in result["rows"]})
    rows = [[m, *(spread(_speeds(of_m, peer), layers) for peer in peers)] for m, of_m in by_m(result["rows"])]
    faster = ["faster at", *(_faster(_speeds(result["rows"], peer)) for peer in peers)]
    return [
        bench_source(result),
        "",
        f"Speed of fp8gemm relative to each peer, above 1 where fp8gemm is faster: geometric mean over {layers} N x K, "
        "and from the least to the largest. Last, at how many of the shapes that a peer takes fp8gemm is faster.",
        "",
        *table(["M", *(PEERS[peer] for peer in peers)], [*rows, faster]),
    ]


def bench_shapes(result: Result) -> list[str]:
    """Every shape: the config, how fast it is, and its speed relative to each peer."""
    peers = _peers(result)
    rows = []
    of_m = [(m, row) for m, of_m in by_m(result["rows"]) for row in of_m]
    for m, row in sorted(of_m, key=lambda each: (each[1]["n"], each[1]["k"])):
        ours = row["us"].get(OURS)
        figures = [MISSING, MISSING] if ours is None else [f"{ours:.1f}", f"{_flops(row) / ours / 1e6:.0f}"]
        ratios = [f"{speeds[0]:.2f}" if (speeds := _speeds([row], peer)) else MISSING for peer in peers]
        rows.append([f"{row['n']} x {row['k']}", m, row["config"], *figures, *ratios])
    return [
        bench_source(result),
        "",
        "Speed of fp8gemm relative to each peer, above 1 where fp8gemm is faster.",
        "",
        *table(["N x K", "M", "tile config", "µs", "TFLOPS", *(PEERS[peer] for peer in peers)], rows),
    ]


def bench_source(result: Result) -> str:
    """The sentences that say where and how a benchmark was run."""
    where = source(result, f"torch {result['torch']}", f"driver for CUDA {result['driver_cuda']}")
    return f"{where} {sentence(result['method'])}"


def spread(ratios: Sequence[float], layers: int = 0) -> str:
    """Geometric mean, least and largest, and of how many N x K they are if not of so many."""
    if not ratios:
        return MISSING
    some = f", {len(ratios)} of {layers}" if len(ratios) < layers else ""
    return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}{some})"


def batch_invariant(result: Result) -> list[str]:
    """What batch invariance costs: time with it over time without, by M and at worst."""
    timed = [row for row in result["rows"] if OURS in row["us"] and INVARIANT in row["us"]]
    rows = []
    for m in dict.fromkeys(row["m"] for row in timed):
        of_m = [row for row in timed if row["m"] == m]
        mean = geometric_mean(_price(row) for row in of_m)
        worst = max(of_m, key=_price)
        rows.append([str(m), f"{mean:.2f}", f"{_price(worst):.2f}", f"{worst['n']} x {worst['k']}"])
    worst = max(timed, key=_price)
    count = len({(row["n"], row["k"]) for row in timed})
    return [
        source(result, f"torch {result['torch']}") + f" {sentence(result['method'])}",
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


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def _peers(result: Result) -> list[str]:
    return [peer for peer in PEERS if peer in result["peers"]]


def _speeds(rows: Sequence[dict[str, Any]], peer: str) -> list[float]:
    """Our speed relative to the peer's at each of these shapes, as far as both have a time."""
    return [row["us"][peer] / row["us"][OURS] for row in rows if {peer, OURS} <= row["us"].keys()]


def _faster(speeds: Sequence[float]) -> str:
    return f"{sum(speed > 1 for speed in speeds)} of {len(speeds)}" if speeds else MISSING


def _flops(row: dict[str, Any]) -> float:
    return float(2 * row["m"] * row["n"] * row["k"])
