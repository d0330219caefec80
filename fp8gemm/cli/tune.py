"""``fp8gemm tune``: from options to timings of every candidate, a judgement of the choice, and a tuned table."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8gemm.cli.arguments import (
    Words,
    grouped_layers,
    listed,
    parse_count_or_all,
    parse_m,
    parse_nk,
    parse_positive,
    random_count,
    several_of,
    shapes,
)
from fp8gemm.cli.bench import DEFAULT_M, DEFAULT_NK
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, lacks_gpu, note, prints_json, tell, tell_json
from fp8gemm.errors import InputError
from fp8gemm.lab import DEVICE
from fp8gemm.lab.bench.regimes import ALONE_S, Regime, method, parse_regime
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.labels import EXPECTED, labelled_config, parse_label
from fp8gemm.lab.tune import report
from fp8gemm.lab.tune.grouped import DEFAULT_M as DEFAULT_GROUPED_M
from fp8gemm.lab.tune.grouped import LAYOUTS, layouts, plan_grouped, run_grouped
from fp8gemm.lab.tune.output import Output
from fp8gemm.lab.tune.results import Results, Work, merged, recorded_seed
from fp8gemm.lab.tune.shapes import MOST_RANDOM, random_shapes
from fp8gemm.quoting import counted
from fp8gemm.terminal.progress import bar, print_above
from fp8gemm.terminal.screen import screen
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Problem, packed_problem
from fp8gemm.tuning.select import eligible_configs, select_config
from fp8gemm.tuning.table import NO_TABLES

if TYPE_CHECKING:
    from fp8gemm.lab.tune.measure import Tuner

EXAMPLE = "fp8gemm tune --shapes 64x7168x2048 --table tuned.json"
DEFAULT_CANDIDATES = 12
METHOD = "CUDA-graph replay over rotating operand sets larger than three times L2, microseconds per call; {how}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    parser.add_argument("--m", type=parse_m, metavar="M,...", help=f"every one with every --nk, default {DEFAULT_M}")
    parser.add_argument(
        "--nk", type=parse_nk, metavar="NxK,...", help=f"every one with every --m, default {DEFAULT_NK}"
    )
    parser.add_argument("--shapes", type=shapes, metavar="MxNxK,...", help="these shapes")
    parser.add_argument(
        "--random", type=random_count, metavar="COUNT", help=f"so many random shapes, at most {MOST_RANDOM}, by --seed"
    )
    parser.add_argument(
        "--grouped",
        type=grouped_layers,
        default=[],
        metavar="GxNxK,...",
        help=f"instead: grouped products, about --m rows in a group, default {DEFAULT_GROUPED_M}; for the report alone",
    )
    parser.add_argument(
        "--layout",
        type=Words(layouts, tuple(each.value for each in LAYOUTS), several=True),
        default=LAYOUTS,
        metavar="NAME,...",
        help="of --grouped: contiguous, masked; default both",
    )
    parser.add_argument("--seed", type=int, help="of random shapes and operands, default that of --results, or fresh")
    parser.add_argument(
        "--candidates",
        type=parse_count_or_all,
        default=DEFAULT_CANDIDATES,
        metavar="all|COUNT",
        help=f"all, or so many that the model ranks first, default {DEFAULT_CANDIDATES}",
    )
    parser.add_argument(
        "--also",
        type=listed(parse_label),
        default=(),
        metavar="LABEL,...",
        help=f"time these beside them, candidates or not: {EXPECTED}",
    )
    peers = f"time others' kernels beside them, of {', '.join(report.PEERS)}"
    parser.add_argument("--peers", type=several_of(report.PEERS), default=(), metavar="NAME,...", help=peers)
    parser.add_argument("--results", type=Path, metavar="PATH", help="write every timing here; go on where it ends")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="PATH",
        help=f"keep here each config that beats the model's choice by more than {100 * report.MARGIN:g} %%",
    )
    parser.add_argument(
        "--static-weights",
        action="store_true",
        help="by programmatic dependent launch, the weight read ahead of the kernel before: plans with static_weights",
    )
    parser.add_argument("--rounds", type=parse_positive, default=3, help="measurements per candidate, default 3")
    parser.add_argument(
        "--regime",
        type=Words(parse_regime, tuple(each.value for each in Regime)),
        default=Regime.TURN,
        metavar="NAME",
        help="turn: candidates take turns; burst: each alone after a pause; sustained: each alone for "
        f"{ALONE_S:g} s; default turn",
    )
    parser.add_argument("--measure-ms", type=float, default=3.0, help="length of a turn, default 3")
    parser.add_argument("--budget-seconds", type=float, help="start no further shape after this long")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print and write. 0; 1 if a candidate failed; 3 without a Hopper GPU.

    Raises:
        InputError: a file is not what the option takes, or options exclude each other.
        LostDeviceError: a kernel has broken the CUDA context; what was measured is written.
    """
    _check_options(options)
    if lacks_gpu("tune"):
        return Exit.NO_GPU

    import torch

    from fp8gemm.driver.device import device_info
    from fp8gemm.kernels.loaded import device_chip
    from fp8gemm.lab.bench.load import Load
    from fp8gemm.lab.provenance import circumstances
    from fp8gemm.lab.tune.measure import Tuner

    seed = recorded_seed(options.results) if options.seed is None else options.seed
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    device, chip = device_info(0), device_chip(0)
    heading: dict[str, Any] = {
        "gpu": device.name,
        "chip": chip.name,
        "num_sms": chip.num_sms,
        **circumstances(device),
        "method": METHOD.format(how=_how(options)),
        "regime": options.regime.value,
        "seed": seed,
        "static_weights": options.static_weights,
    }
    tell(options, f"{device.name}, driver for CUDA {device.driver_version}, torch {torch.__version__}, seed {seed}")
    generator = torch.Generator(DEVICE).manual_seed(seed)
    measure_us = 1e3 * options.measure_ms
    regime = options.regime
    with Load() as load, torch.cuda.device(DEVICE):
        tuner = Tuner(device, chip, generator, rounds=options.rounds, measure_us=measure_us, regime=regime, load=load)
        return _tune(options, tuner, heading)


def _tune(options: argparse.Namespace, tuner: Tuner, heading: dict[str, Any]) -> int:
    if options.grouped:
        sizes = options.m or parse_m(DEFAULT_GROUPED_M)
        of_groups = plan_grouped(options.grouped, sizes, options.layout, tuner.chip, options.candidates, options.also)
        summary, document = run_grouped(
            of_groups,
            tuner,
            heading["seed"],
            budget_seconds=options.budget_seconds,
            emit=(lambda text: None) if prints_json(options) else print_above,
        )
        tell_json(options, {**heading, **document})
        return Exit.FAILED if summary.failed else Exit.DONE
    problems = [
        replace(packed_problem(shape.m, shape.n, shape.k), static_weights=options.static_weights)
        for shape in chosen_shapes(options, heading["seed"])
    ]
    work = [plan_work(problem, tuner.chip, options.candidates, options.also) for problem in problems]
    output = Output(Results(heading, options.results), options.table, heading)
    _measure(work, tuner, output, options)
    summary = report.Summary.of(output.rows)
    left_out = len(work) - len(output.rows)
    tell(options, screen().fill(f"\n{summary}"))
    if left_out:
        note(f"{counted(left_out, 'shape')} left out, the budget was used up")
    tell_json(options, {**heading, **report.as_json(output.rows, summary), "left_out": left_out})
    return Exit.FAILED if summary.failed else Exit.DONE


def _check_options(options: argparse.Namespace) -> None:
    """Whether options are given that grouped products have no use for, or that exclude each other, or sizes that
    groups do not have.

    Raises:
        InputError: some are.
    """
    names = ("nk", "shapes", "random", "peers", "results", "table", "static_weights")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if options.grouped and given:
        raise InputError(f"expected none of these beside --grouped, got {', '.join(given)}")
    if options.also and options.table:
        raise InputError("expected no --table beside --also, which times configs that no choice may fall on")
    for (groups, n, k), grouping in product(options.grouped, options.layout):
        grouped_problem(grouping, groups, 1, n, k)


def plan_work(problem: Problem, chip: Chip, count: int | None, also: Sequence[str] = ()) -> Work[Problem]:
    """The first ``count`` eligible candidates by the model, all of them for None, and in any case the choice and the
    configs of these labels.

    Raises:
        InputError: a label's config does not fit.
    """
    ranked, choice = eligible_configs(problem, chip, NO_TABLES), select_config(problem, chip)
    more = (labelled_config(label, problem) for label in also)
    wanted = {config.label: config for config in (*ranked[:count], choice, *more)}
    return Work(problem, wanted, choice.label, ranked[0].label)


def chosen_shapes(options: argparse.Namespace, seed: int) -> list[Shape]:
    """Every shape that the options name, once, in their order; the default ones if they name none."""
    found = list(options.shapes or ())
    if options.m or options.nk or not (found or options.random):
        grid = options.m or parse_m(DEFAULT_M), options.nk or parse_nk(DEFAULT_NK)
        found += [Shape(m, n, k) for m in grid[0] for n, k in grid[1]]
    found += random_shapes(options.random, seed) if options.random else []
    return list(dict.fromkeys(found))


def _measure(work: Sequence[Work[Problem]], tuner: Tuner, output: Output, options: argparse.Namespace) -> None:
    """Every shape that the budget allows, each written and printed as soon as it is there."""
    from fp8gemm.kernels.catalogue import kernel_request
    from fp8gemm.lab.bench.deep_gemm_ahead import compile_deep_gemm
    from fp8gemm.lab.tune.ahead import Ahead
    from fp8gemm.lab.tune.measure import LostDeviceError

    def requests(each: Work[Problem], names: Sequence[str]) -> Iterator[Any]:
        return (kernel_request(each.problem, each.candidates[name]) for name in names if name in each.candidates)

    known = [output.results.row(each.shape, choice=each.choice, model=each.model) for each in work]
    missing = [row.missing([*each.candidates, *options.peers]) for row, each in zip(known, work, strict=True)]
    compile_deep_gemm([each.shape for each, names in zip(work, missing, strict=True) if report.DEEP_GEMM in names])
    start = time.monotonic()
    progress = bar(len(work), "shapes")
    emit = (lambda text: None) if prints_json(options) else progress.write
    table = report.RowTable()
    emit(table.header())
    wanted = (request for pair in zip(work, missing, strict=True) for request in requests(*pair))
    with progress, Ahead(wanted) as ahead:
        for each, row, names in zip(work, known, missing, strict=True):
            if options.budget_seconds is not None and time.monotonic() - start > options.budget_seconds:
                break
            if names:
                ahead.wait(list(requests(each, names)))
                configs = [each.candidates[name] for name in names if name in each.candidates]
                try:
                    peers = [name for name in options.peers if name in names]
                    measured = tuner.measure(each.problem, configs, peers=peers)
                except LostDeviceError as error:
                    output.results.add(merged(row, {}, {}, {error.label: str(error)}))
                    raise
                row = merged(row, measured.us, measured.peers, measured.failed)
            emit(table.line(output.finish(row, each)))
            progress.update()


def _how(options: argparse.Namespace) -> str:
    turn = f" of {options.measure_ms:g} ms" if options.regime is Regime.TURN else ""
    return method([options.regime], options.rounds) + turn
