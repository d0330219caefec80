"""``fp8gemm warmup``: from shapes, models and recordings to kernels in the cache. No GPU, no driver, no tensors."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fp8gemm import settings
from fp8gemm.ahead.kernels import CHIPS
from fp8gemm.ahead.warming import check_ready, make_ready
from fp8gemm.cli.arguments import add_chips, parse_positive
from fp8gemm.cli.asked import demand_of
from fp8gemm.cli.asked_words import add_asked
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, note, tell, tell_json
from fp8gemm.errors import CacheError
from fp8gemm.terminal.screen import screen

EXAMPLE = "fp8gemm warmup --nk 2112x7168 --max-m 64 --chip h200 --calls layer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    add_asked(parser)
    add_chips(parser, CHIPS)
    parser.add_argument("--jobs", type=parse_positive, help="threads that compile, default all processors")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="where to put them, default FP8GEMM_CACHE_DIR")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--recompile", action="store_true", help="compile also what is there, with the NVRTC of now")
    instead.add_argument("--list", action="store_true", help="print the kernels' names, and compile nothing")
    instead.add_argument(
        "--check",
        action="store_true",
        help=f"only look: {int(Exit.INCOMPLETE)} if not all is there; compiles, writes nothing",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Compile or look, and print what is there. 0; `Exit.INCOMPLETE` if not all of it is.

    Raises:
        InputError: nothing was asked for, or a file is not what the option takes.
        CacheError, CompileError: as `fp8gemm.ahead.warming.warmup`.
    """
    started = time.perf_counter()
    changes: dict[str, Any] = {}
    if options.cache_dir is not None:
        if not options.check:
            _make_parents(options.cache_dir)
        changes["cache_dirs"] = (options.cache_dir,)
    with settings.scope(**changes):
        wanted = demand_of(options)
        if options.list:
            labels = sorted(request.label for request in wanted.requests)
            tell(options, "\n".join(labels))
            tell_json(options, labels)
            return Exit.DONE
        if options.check:
            done = check_ready(wanted, started=started)
        else:
            done = make_ready(wanted, jobs=options.jobs, again=options.recompile, started=started)
    tell(options, screen().fill(str(done)))
    tell_json(options, done.as_json())
    if done.missing:
        note(f"fp8gemm: {done.lack()}")
    return Exit.INCOMPLETE if done.missing else Exit.DONE


def _make_parents(directory: Path) -> None:
    """What is above a directory that is named here, as `mkdir -p` makes it, so that those whom it will serve get there.

    NOTE: the cache itself would make it private to its owner.
    """
    try:
        directory.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(f"{directory}: expected a directory that can be made; {error}") from error
