"""``fp8gemm demo``: from options to a table or a JSON object, and an exit code."""

from __future__ import annotations

import argparse
import random
from contextlib import AbstractContextManager, nullcontext

from fp8gemm import __version__
from fp8gemm.cli.arguments import parse_m, parse_nk
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, prints_json, tell, tell_json
from fp8gemm.lab.demo import report
from fp8gemm.lab.demo.target import Target, find_target
from fp8gemm.terminal.progress import bar
from fp8gemm.terminal.screen import screen

EXAMPLE = "fp8gemm demo --m 1,64 --nk 256x512"
DEFAULT_M = "1,64,4096"
DEFAULT_NK = "7168x2048,4096x7168,2112x7168"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    parser.add_argument("--m", type=parse_m, default=DEFAULT_M, metavar="M,...", help=f"default {DEFAULT_M}")
    parser.add_argument("--nk", type=parse_nk, default=DEFAULT_NK, metavar="NxK,...", help=f"default {DEFAULT_NK}")
    parser.add_argument("--seed", type=_seed, help="of the random operands, default a fresh one")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table. 0, or 1 if a check failed.

    Raises:
        CompileError, CacheMissError, DriverError: a kernel could not be built or launched.
    """
    target = find_target()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    table = report.RowTable()
    told = f"fp8gemm {__version__}, seed {seed}\n{target.introduction()}"
    tell(options, f"{screen().fill(told)}\n\n{table.header()}")
    rows = _measure(options, target, seed, table)
    summary = report.Summary.of(rows)
    tell(options, screen().fill(f"\n{report.LEGEND}\n{summary}"))
    tell_json(options, _as_json(rows, summary, target, seed))
    return Exit.FAILED if summary.failed else Exit.DONE


def _measure(options: argparse.Namespace, target: Target, seed: int, table: report.RowTable) -> list[report.Row]:
    """All rows; as a table, each is printed as soon as it is there."""
    import torch

    from fp8gemm.lab.demo.measure import measure_layer

    generator = torch.Generator(target.device).manual_seed(seed)
    current: AbstractContextManager[object] = nullcontext() if target.gpu is None else torch.cuda.device(target.device)
    rows = []
    with current, bar(len(options.m) * len(options.nk), "products") as progress:
        for n, k in options.nk:
            for row in measure_layer(n, k, options.m, target, generator):
                rows.append(row)
                if not prints_json(options):
                    progress.write(table.line(row))
                progress.update()
    return rows


def _as_json(rows: list[report.Row], summary: report.Summary, target: Target, seed: int) -> dict[str, object]:
    return {
        "version": __version__,
        "seed": seed,
        "backend": target.backend,
        "chip": target.chip.name,
        "gpu": None if target.gpu is None else target.gpu.name,
        "message": target.reason,
        "rows": [row.as_json() for row in rows],
        "passed": summary.passed,
        "failed": summary.failed,
        "kernels_compiled": summary.compiled,
        "kernels_from_cache": summary.from_cache,
        "cache": list(summary.cache),
        "ok": not summary.failed,
    }


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63 - 1, got {text!r}")
    return int(text)
