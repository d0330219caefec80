"""Draws the README's tables from ``docs/results/*.json``, between its two markers; ``--check`` only compares.

Nobody types a figure: a benchmark writes JSON, and this script is the one way from there to a page.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

PEERS = {
    "bf16": "`torch.mm`, bf16",
    "tensorwise": "`torch._scaled_mm`, per-tensor scales",
    "rowwise": "`torch._scaled_mm`, row-wise scales",
    "cublas_block": "`F.scaled_mm`, block scales",
    "deepgemm": "DeepGEMM",
}
DETAILED_M = 4096


def load(name: str) -> dict[str, Any]:
    """One result file."""
    result: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return result


def tables() -> str:
    """The Markdown between the markers."""
    bench, start = load("bench-h200.json"), load("coldstart-h200.json")
    peers = [peer for peer in PEERS if peer in bench["peers"]]
    return "\n".join(
        [
            f"{bench['gpu']}, {bench['date']}, torch {bench['torch']}, driver for CUDA {bench['driver_cuda']}. "
            f"{bench['method'][0].upper()}{bench['method'][1:]}.",
            "",
            f"Speed of fp8gemm relative to each peer at M = {DETAILED_M} (above 1: fp8gemm is faster):",
            "",
            *_detail(bench, peers),
            "",
            "The same by M, geometric mean over the six N x K:",
            "",
            *_means(bench, peers),
            "",
            f"From `import fp8gemm` to the first result, {start['m']}x{start['n']}x{start['k']}, with torch imported "
            f"and its context made before: {start['cold_ms']:.0f} ms with an empty cache, "
            f"{start['warm_ms']:.0f} ms with a warm one.",
            "",
            f"All figures: [`docs/results/bench-h200.json`](docs/results/bench-h200.json), seed {bench['seed']}.",
        ]
    )


def _detail(bench: dict[str, Any], peers: list[str]) -> list[str]:
    lines = _head(["N x K", "tile config", "µs", "TFLOPS", *(PEERS[peer] for peer in peers)])
    for row in bench["rows"]:
        if row["m"] == DETAILED_M:
            ours = row["us"]["fp8gemm"]
            tflops = 2 * row["m"] * row["n"] * row["k"] / ours / 1e6
            ratios = (f"{row['us'][peer] / ours:.2f}" if peer in row["us"] else "-" for peer in peers)
            lines.append(_line([f"{row['n']} x {row['k']}", row["config"], f"{ours:.1f}", f"{tflops:.0f}", *ratios]))
    return lines


def _means(bench: dict[str, Any], peers: list[str]) -> list[str]:
    lines = _head(["M", *(PEERS[peer] for peer in peers)])
    for m, means in sorted(bench["geomean_relative_speed"].items(), key=lambda item: int(item[0])):
        lines.append(_line([m, *(f"{means[peer]['speed']:.2f}" if peer in means else "-" for peer in peers)]))
    return lines


def _head(cells: list[str]) -> list[str]:
    return [_line(cells), _line(["---"] * len(cells))]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def redrawn(page: str) -> str:
    """``page`` with fresh tables between the markers."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main() -> int:
    """Rewrite, or with ``--check`` compare; 1 if the page is out of date."""
    parser = argparse.ArgumentParser(description="Draw the README's tables from docs/results.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the README is out of date")
    options = parser.parse_args()
    page = README.read_text()
    fresh = redrawn(page)
    if options.check:
        if page != fresh:
            print("results: README.md does not show docs/results; run scripts/results.py", file=sys.stderr)
        return int(page != fresh)
    README.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
