"""How long ``fp8gemm warmup`` of a model takes, from nothing and with every kernel there. Needs no GPU.

Timed are whole processes by the wall clock, the start of Python included. Runs from a checkout; ``--json FILE`` writes
what docs/serving.md shows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm.cli.arguments import parse_m, parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, tell_json  # noqa: E402
from fp8gemm.jit.compiler import nvrtc_version  # noqa: E402
from fp8gemm.lab.bench.modes import processor_name  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from fp8gemm.quoting import counted  # noqa: E402
from fp8gemm.terminal.progress import bar  # noqa: E402

MODEL = ROOT / "tests" / "data" / "configs" / "deepseek-v3.json"
LAYOUT = "none"
RANKS = ([1], [8], [1, 8])
LIMITS = {"cold_seconds": 60.0, "warm_seconds": 2.0}
"""Seconds within which a warmup is wanted to end on two cores."""

Progress = Callable[[], object]


def measure(
    model: Path, ranks: Sequence[int], max_m: int, *, repeats: int, progress: Progress | None = None
) -> dict[str, Any]:
    """A warmup of a model's linear layers into an empty directory, and again.

    Args:
        model: its config.json.
        ranks: for ``--tp``, which makes the layers of each ready.
        max_m: for ``--max-m``.
        repeats: processes that find everything; their median counts.
        progress: called after each process.

    Raises:
        SystemExit: a process failed, or did not find what the first had compiled.
    """
    of_model = ["--model", str(model), "--tp", ",".join(map(str, ranks)), "--max-m", str(max_m)]
    # The linear layers alone: how many kernels experts are depends on the shapes of them.
    arguments = [*of_model, "--layout", LAYOUT]

    def timed(cache: Path) -> tuple[float, dict[str, Any]]:
        seconds, done = warmup(*arguments, "--cache-dir", str(cache))
        if progress is not None:
            progress()
        return seconds, done

    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory, "cache")
        cold_seconds, cold = timed(cache)
        warm = [timed(cache) for _ in range(repeats)]
    found = {done["hits"] for _, done in warm}
    if cold["compiled"] != cold["kernels"] or found != {cold["kernels"]}:
        raise SystemExit(f"warmup_time: expected {cold['kernels']} kernels compiled, then found; got {cold}, {found}")
    return {
        "model": model.stem,
        "tp": list(ranks),
        "max_m": max_m,
        "kernels": cold["kernels"],
        "kernels_with_experts": len(warmup(*of_model, "--list")[1]),
        "chips": cold["chips"],
        "quantizers": cold["quantizers"],
        "bytes": cold["bytes"],
        "cold_seconds": round(cold_seconds, 2),
        "warm_seconds": round(statistics.median(seconds for seconds, _ in warm), 2),
    }


def warmup(*arguments: str) -> tuple[float, Any]:
    """Seconds of a process, and what it printed."""
    # Settings would change what is made ready; and an installed package has its bytecode.
    dropped = ("FP8GEMM_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    command = [sys.executable, "-m", "fp8gemm", "warmup", "--json", *arguments]
    started = time.perf_counter()
    done = subprocess.run(command, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"warmup_time: the measured process failed:\n{done.stderr}")
    return seconds, json.loads(done.stdout)


def result(runs: Sequence[dict[str, Any]], repeats: int) -> dict[str, Any]:
    """What is written: the machine, and every run."""
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "nvrtc": nvrtc_version(),
        **provenance(),
        "layout": LAYOUT,
        "repeats": repeats,
        "limits": LIMITS,
        "runs": list(runs),
    }


def line(run: dict[str, Any]) -> str:
    """A run for people."""
    ranks, size = ", ".join(map(str, run["tp"])), run["bytes"] / 2**20
    return (
        f"{run['model']}, tp {ranks}, M up to {run['max_m']}, --layout {LAYOUT}: {counted(run['kernels'], 'kernel')}, "
        f"{size:.1f} MiB, "
        f"{run['cold_seconds']:.2f} s from nothing, {run['warm_seconds']:.2f} s when all are there"
    )


def main() -> int:
    """Measure, print and write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=MODEL, metavar="FILE", help="config.json, default DeepSeek-V3's")
    parser.add_argument(
        "--tp", type=parse_m, nargs="+", default=RANKS, metavar="R,...", help="one run for each, default 1 8 1,8"
    )
    parser.add_argument("--max-m", type=parse_positive, default=16384, metavar="M", help="default 16384")
    parser.add_argument("--repeats", type=parse_positive, default=3, help="processes that find everything, default 3")
    add_json(parser)
    options = parser.parse_args()
    # The first process of all also pays for the machine's own cold files, and writes bytecode; it is not counted.
    warmup("--model", str(options.model), "--list")
    runs = []
    with bar(len(options.tp) * (1 + options.repeats), "runs") as shown:
        for ranks in options.tp:
            run = measure(options.model, ranks, options.max_m, repeats=options.repeats, progress=shown.update)
            with apart(options):
                shown.write(line(run))
            runs.append(run)
    tell_json(options, result(runs, options.repeats))
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
