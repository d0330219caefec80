"""What fp8gemm sets out to reach in speed, measured beside DeepGEMM in the same run, and which of it holds.

    python scripts/speed_goals.py prefill-burst prefill-sustained --directory results
    python scripts/speed_goals.py --judge results/prefill-burst.json

Each goal is a run of ``fp8gemm bench`` or ``tune``, and limits that its figures keep; ``--list`` shows both. It needs
a Hopper GPU, and an importable ``deep_gemm``. A file of an earlier run makes way for the new one. A run that its
budget cut off is judged by what it measured, and does not hold.

Exit code 0: all limits hold. 1: some does not, or something was not measured. 2: bad arguments. 3: no Hopper GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.main import main as fp8gemm  # noqa: E402
from fp8gemm.cli.output import lacks_gpu, note  # noqa: E402
from fp8gemm.lab.bench.gates import Gate, Gates  # noqa: E402

Row = Mapping[str, Any]
DEEP_GEMM, OURS = "deepgemm", "fp8gemm"
PREFILL = ("bench", "--m", "512,777,1024,2048,4096,8192", "--peers", "tensorwise,deepgemm")
FEW = ("bench", "--m", "48,64,96,128,192", "--small-m", "--peers", "deepgemm")
RANDOM = ("tune", "--random", "100", "--candidates", "4", "--peers", "deepgemm", "--also", "128x256-s3")


@dataclass(frozen=True)
class Goal:
    """A measurement, and what it is to show.

    Attributes:
        command: of fp8gemm, without where its results go.
        seconds: that it takes, about, on an H100.
        rows: that it gives, if nothing cuts it off.
        gates: what its rows are to keep.
    """

    command: tuple[str, ...]
    seconds: int
    rows: int
    gates: Gates[Row]


def at(row: Row) -> str:
    """Where a row was measured."""
    groups = f"{row['part']} {row['groups']}x" if "groups" in row else ""
    return f"{groups}{row['m']}x{row['n']}x{row['k']}"


def ratio(over: float | None, under: float | None) -> float | None:
    """One time over another; None where one is not there."""
    return None if over is None or under is None else over / under


def speeds(over: str, ours: str, rows: Sequence[Row], *, some: Callable[[Row], bool] = bool) -> dict[str, float | None]:
    """A peer's time over ours."""
    return {at(row): ratio(row["us"].get(over), row["us"].get(ours)) for row in rows if some(row)}


def of_choice(rows: Sequence[Row]) -> dict[str, float | None]:
    """DeepGEMM's time over that of the choice, but for the twentieth of the shapes where it is least, or not there."""
    found = {at(row): ratio(row.get("peers", {}).get(DEEP_GEMM), row["us"].get(row["choice"])) for row in rows}
    in_order = sorted(found, key=lambda name: -1.0 if (speed := found[name]) is None else speed)
    return {name: found[name] for name in in_order[len(in_order) // 20 :]}


def regrets(rows: Sequence[Row]) -> dict[str, float | None]:
    """The time of the choice over that of the fastest candidate."""
    return {at(row): ratio(row["us"].get(row["choice"]), min(row["us"].values())) for row in rows}


_OF_DEEP_GEMM = partial(speeds, DEEP_GEMM, OURS)
_OF_TENSORWISE = partial(speeds, "tensorwise", OURS)
_PREFILL: Gates[Row] = Gates(
    (
        Gate("speed relative to DeepGEMM", 1.0, _OF_DEEP_GEMM),
        Gate("speed relative to DeepGEMM, mean", 1.12, _OF_DEEP_GEMM, mean=True),
        Gate("speed relative to tensor-wise cuBLASLt", 0.85, _OF_TENSORWISE),
        Gate("speed relative to tensor-wise cuBLASLt, mean", 0.93, _OF_TENSORWISE, mean=True),
    )
)
_RANDOM: Gates[Row] = Gates(
    (
        Gate("speed relative to DeepGEMM, at 95 of 100", 1.0, of_choice),
        Gate("time over the fastest candidate's", 1.03, regrets, at_least=False, mean=True),
    )
)
_CONTIGUOUS: Gates[Row] = Gates((Gate("speed relative to DeepGEMM", 1.01, partial(speeds, DEEP_GEMM, "offsets")),))
_MASKED: Gates[Row] = Gates(
    (Gate("speed relative to DeepGEMM", 1.0, partial(speeds, DEEP_GEMM, "masked", some=lambda row: row["m"] >= 192)),)
)
_GRADIENTS, _K_GROUPED = (
    Gates[Row](
        (
            Gate("speed relative to DeepGEMM", 1.0, partial(speeds, DEEP_GEMM, ours)),
            Gate("speed relative to DeepGEMM, mean", 1.08, partial(speeds, DEEP_GEMM, ours), mean=True),
        )
    )
    for ours in (OURS, "accumulate")
)
_FEW: Gates[Row] = Gates(
    (
        Gate("speed relative to DeepGEMM", 1.0, _OF_DEEP_GEMM),
        Gate("speed relative to DeepGEMM, mean", 1.15, _OF_DEEP_GEMM, mean=True),
        Gate("time over that of reading the weight", 1.35, partial(speeds, OURS, "floor"), at_least=False, mean=True),
        Gate("speed with static weights", 0.99, partial(speeds, OURS, "fp8gemm_pdl")),
    )
)

GOALS: Mapping[str, Goal] = {
    "prefill-burst": Goal((*PREFILL, "--regime", "burst", "--rounds", "5"), 120, 36, _PREFILL),
    "prefill-sustained": Goal((*PREFILL, "--regime", "sustained", "--rounds", "3"), 430, 36, _PREFILL),
    "random-burst": Goal((*RANDOM, "--regime", "burst", "--rounds", "3"), 180, 100, _RANDOM),
    "random-sustained": Goal((*RANDOM, "--regime", "sustained", "--rounds", "1"), 800, 100, _RANDOM),
    **{
        f"{part}-{regime}": Goal(
            ("bench", "--grouped", "--only", part, "--regime", regime, "--rounds", rounds), 70, rows, gates
        )
        for part, rows, gates in (("contiguous", 8, _CONTIGUOUS), ("masked", 16, _MASKED), ("k-grouped", 6, _K_GROUPED))
        for regime, rounds in (("burst", "5"), ("sustained", "2"))
    },
    **{
        f"gradients-{regime}": Goal(
            ("bench", "--weight-gradients", "--regime", regime, "--rounds", rounds), seconds, 7, _GRADIENTS
        )
        for regime, rounds, seconds in (("burst", "5", 40), ("sustained", "2", 90))
    },
    "few-rows": Goal((*FEW, "--rounds", "31"), 160, 35, _FEW),
    "few-rows-burst": Goal((*FEW, "--regime", "burst", "--rounds", "7"), 150, 35, _FEW),
}


def judged(goal: Goal, rows: Sequence[Row]) -> Iterator[str]:
    """Lines that say what holds."""
    yield from goal.gates.lines(rows)
    for gate in goal.gates.gates:
        if lacks := [name for name, figure in gate.figures(rows).items() if figure is None]:
            yield f"{gate.name}: not measured at {len(lacks)}, the first of them {lacks[0]}"
    if len(rows) < goal.rows:
        yield f"{len(rows)} of {goal.rows} rows were measured"


def holds(goal: Goal, rows: Sequence[Row]) -> bool:
    """Whether all was measured, and keeps its limits."""
    if len(rows) != goal.rows or any(None in gate.figures(rows).values() for gate in goal.gates.gates):
        return False
    return all(verdict["met"] for verdict in goal.gates.as_json(rows).values())


def measure(name: str, options: argparse.Namespace, seconds: float) -> Path:
    """Run a goal's command; where its results are."""
    goal, path = GOALS[name], Path(options.directory) / f"{name}.json"
    path.unlink(missing_ok=True)  # what an earlier run measured is not of this one
    words = [*goal.command, *([] if math.isinf(seconds) else ["--budget-seconds", str(max(int(seconds), 1))])]
    words += ["--seed", str(options.seed)] if options.seed is not None else []
    words += ["--results" if goal.command[0] == "tune" else "--json", str(path)]
    note(f"fp8gemm {' '.join(words)}")
    fp8gemm(words)  # its exit code is of peers, too, that cannot do a shape
    return path


def judge(name: str, path: Path) -> bool:
    """Print what the results in a file show."""
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    print(f"\n{name}, {path}", *judged(GOALS[name], rows), sep="\n", flush=True)
    return holds(GOALS[name], rows)


def goal_of(path: Path) -> str:
    """The goal that a file is named for: ``prefill-burst-h200.json`` for ``prefill-burst``."""
    names = [name for name in GOALS if path.stem == name or path.stem.startswith(f"{name}-")]
    if not names:
        raise argparse.ArgumentTypeError(f"expected a file named for one of {', '.join(GOALS)}; got {path.name}")
    return names[0]


def listed() -> Iterator[str]:
    """A line for each goal and for each of its limits."""
    for name, goal in GOALS.items():
        yield f"{name}: fp8gemm {' '.join(goal.command)} (about {goal.seconds} s)"
        for gate in goal.gates.gates:
            yield f"  {gate.name}: {'at least' if gate.at_least else 'at most'} {gate.limit:g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="GOAL", help=f"of {', '.join(GOALS)}")
    parser.add_argument("--list", action="store_true", help="say what they are, and measure nothing")
    parser.add_argument(
        "--judge", action="append", default=[], type=Path, metavar="FILE", help="results that are there"
    )
    parser.add_argument("--directory", default=".", help="where a file for each goal goes, default here")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="for all of them")
    parser.add_argument("--seed", type=int, help="of operands and random shapes, default a fresh one")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in GOALS]:
        parser.error(f"expected one of {', '.join(GOALS)}; got {unknown[0]}")
    try:
        found = [(goal_of(path), path) for path in options.judge]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(listed()))
        return Exit.DONE
    if not options.names and not found:
        parser.error("expected a goal, --judge or --list; got none of them")
    met = [judge(name, path) for name, path in found]
    if options.names and lacks_gpu("speed_goals"):
        return Exit.NO_GPU
    started = time.monotonic()
    for name in options.names:
        left = options.budget_seconds - (time.monotonic() - started)
        if left > 0:
            met.append(judge(name, measure(name, options, left)))
        else:
            note(f"{name}: no time is left for it")
            met.append(False)
    return Exit.DONE if all(met) else Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
