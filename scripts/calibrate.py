"""Judges the cost model on measured sweeps, and fits its constants to them. Runs from a checkout, needs no GPU.

Printed: the error of the predicted times, and the regret of the choices, which is the time of the candidate that the
model predicts to be fastest over the best measured one, less 1. With --fit the constants are printed as Python for
fp8gemm/tuning/constants.py. With --holdout some N x K are judged apart, and not fitted to: so that the figures of a
fit are not those of the data it saw. The same files, share and seed hold out the same N x K.

Exit code 0: done. 2: bad arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import fit, judge, report, timings  # noqa: E402
from result_plots import calibration as picture  # noqa: E402

from fp8gemm.cli.arguments import add_chip, parse_positive  # noqa: E402
from fp8gemm.cli.output import add_json, apart, tell_json  # noqa: E402
from fp8gemm.errors import Fp8GemmError  # noqa: E402
from fp8gemm.lab.bench.regimes import Regime  # noqa: E402
from fp8gemm.lab.pyplot import require_matplotlib  # noqa: E402
from fp8gemm.tuning import model  # noqa: E402
from fp8gemm.tuning.config import TileConfig  # noqa: E402
from fp8gemm.tuning.constants import DEFAULT, Constants  # noqa: E402
from fp8gemm.tuning.hopper import Chip  # noqa: E402
from fp8gemm.tuning.problem import Problem  # noqa: E402
from fp8gemm.tuning.select import ranked_configs  # noqa: E402

ALL, FITTED, HELD_OUT = "all", "fitted", "held out"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, judge, fit, print and write; the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.select and options.fit:
        parser.error("--select judges the constants of fp8gemm/tuning/constants.py; expected it without --fit")
    if options.only and not options.fit:
        parser.error("--only: expected --fit with it")
    try:
        if options.plot is not None:
            require_matplotlib()
        if options.fit:
            fit.require_scipy()
        sweep = timings.read_sweeps(options.sweeps, options.chip, least_m=options.least_m)
        with apart(options):
            result = _calibrate(options, sweep)
    except Fp8GemmError as error:
        parser.error(str(error))
    tell_json(options, result, report.as_text)
    if options.plot is not None:
        picture.draw(result, options.plot)
    return 0


def predicted_us(row: timings.Row, config: TileConfig, constants: Constants, *, chip: Chip) -> float:
    """The model's time, in the row's regime: peers in turn share the clock of load that lasts."""
    cost = model.predict(row.problem, config, chip, constants)
    return cost.burst_us if row.regime is Regime.BURST else cost.total_us


def _tile_of_choice(problem: Problem, chip: Chip) -> TileConfig:
    """The choice among the configs of the ordinary orientation, which are those whose model this is."""
    return next(config for config in ranked_configs(problem, chip) if isinstance(config, TileConfig))


def _parser() -> argparse.ArgumentParser:
    text = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(description=" ".join(text[:2]), epilog=text[-1])
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP.json", help="measured sweeps of one GPU")
    add_chip(parser)
    parser.add_argument("--fit", action="store_true", help="fit the constants (needs scipy)")
    parser.add_argument(
        "--only", type=lambda names: names.split(","), default=[], metavar="NAME,...", help="constants to fit"
    )
    parser.add_argument(
        "--evaluations", type=parse_positive, default=2500, metavar="COUNT", help="length of the fit, default 2500"
    )
    parser.add_argument("--holdout", type=_share, metavar="SHARE", help="judge this share of the N x K apart")
    parser.add_argument("--least-m", type=parse_positive, default=1, metavar="M", help="leave out shapes of fewer rows")
    parser.add_argument("--seed", type=int, default=0, help="of which N x K are held out, default 0")
    parser.add_argument("--select", action="store_true", help="judge the library's choice too, tuned table and all")
    add_json(parser)
    parser.add_argument("--plot", type=Path, metavar="PATH.png", help="draw them (needs fp8gemm[plot])")
    return parser


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1, got {text!r}")
    return share


def _calibrate(options: argparse.Namespace, sweep: timings.Sweep) -> dict[str, Any]:
    """Print everything, each regime of the sweeps apart; what `--json` writes."""
    chip = options.chip
    print(f"{sweep.heading['gpu']}, {sweep.heading['date']}: {sweep.timings} timings, {len(sweep.rows)} shapes")
    if sweep.unknown:
        print(f"left out: {sweep.unknown.total()} timings of {len(sweep.unknown)} labels that are no candidates")
    fitted_on: Sequence[timings.Row] = sweep.rows
    parts: dict[str, Sequence[timings.Row]] = {ALL: fitted_on}
    if options.holdout is not None:
        fitted_on, held_out = timings.split(sweep.rows, options.holdout, options.seed)
        parts = {FITTED: fitted_on, HELD_OUT: held_out}
    regimes = list(dict.fromkeys(row.regime for row in sweep.rows))
    if len(regimes) > 1:
        parts = {
            f"{name}, {regime.value}": [row for row in rows if row.regime is regime]
            for name, rows in parts.items()
            for regime in regimes
        }
    select = partial(_tile_of_choice, chip=chip) if options.select else None

    def judged(constants: Constants) -> list[dict[str, Any]]:
        predict = partial(predicted_us, constants=constants, chip=chip)
        judgements = [judge.judged(name, rows, predict, select) for name, rows in parts.items()]
        for part in judgements:
            print("", *report.part_lines(part), sep="\n")
        return judgements

    constants = DEFAULT
    judgements = judged(constants)
    if options.fit:
        found = fit.fit(
            fitted_on,
            partial(predicted_us, chip=chip),
            constants,
            only=options.only,
            evaluations=options.evaluations,
        )
        constants = found.constants
        costs = ", then ".join(f"{cost:.4f}" for cost in found.cost)
        print(f"\nfitted in {found.evaluations} evaluations; objective {costs}")
        judgements = judged(constants)
        print("", *fit.pasted(constants, DEFAULT), sep="\n")
    held = {} if options.holdout is None else {"holdout": options.holdout, "seed": options.seed}
    return {
        **sweep.heading,
        **held,
        "sweeps": [path.name for path in options.sweeps],
        "constants": asdict(constants),
        "unknown": dict(sweep.unknown),
        "parts": judgements,
        "points": judge.scatter(sweep.rows, partial(predicted_us, constants=constants, chip=chip)),
    }


if __name__ == "__main__":
    sys.exit(main())
