"""``scripts/profile.py``: from options to tables, a trace and a picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fp8gemm.cli.arguments import parse_mnk
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, apart, lacks_gpu, tell_json
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.lab.profiling.timeline import Timeline
from fp8gemm.reading import Kind, read_json

DESCRIPTION = """\
What one kernel does with its time: counters (ncu), speed and energy under sustained load, and, with --trace or
--timeline, its warp roles over time, from an instrumented build. Needs a Hopper GPU, except for --from.

Exit code 0: done. 1: the instrumented kernel's result differs. 2: bad arguments. 3: no Hopper GPU."""

_TRACE = Kind("a file that --trace wrote", 64 << 20)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse ``argv`` and run; the exit code."""
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="?", type=parse_mnk, metavar="MxNxK", help="such as 4096x7168x2048")
    parser.add_argument("--config", metavar="LABEL", help="a tile config, such as 128x128-s5-c1x1; the chosen one")
    parser.add_argument("--seconds", type=float, default=5.0, help="of sustained load, default 5")
    add_json(parser)
    parser.add_argument("--trace", type=Path, metavar="PATH.json", help="record the warp roles, for chrome://tracing")
    parser.add_argument("--timeline", type=Path, metavar="PATH.png", help="draw them (needs fp8gemm[plot])")
    parser.add_argument("--cta", type=int, default=0, help="whose roles, default 0")
    parser.add_argument(
        "--from",
        dest="earlier",
        type=_earlier,
        metavar="JSON",
        help="run nothing; --timeline what --trace wrote earlier",
    )
    options = parser.parse_args(argv)
    if (options.shape is None) == (options.earlier is None):
        parser.error("expected either MxNxK or --from")
    if options.earlier is not None and options.timeline is None:
        parser.error("--from: expected --timeline with it")
    if options.timeline is not None:
        from fp8gemm.lab.pyplot import require_matplotlib

        try:
            require_matplotlib("--timeline")
        except UnsupportedError as error:
            parser.error(f"{error}; or draw elsewhere, --from what --trace writes here")
    if options.earlier is not None:
        _draw(options.earlier, options.timeline)
        return Exit.DONE
    try:
        return _run(options)
    except InputError as error:
        parser.error(str(error))


def _earlier(path: str) -> Timeline:
    try:
        return Timeline.from_json(read_json(Path(path), _TRACE))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(_TRACE.unfit(path, error))) from error


def _run(options: argparse.Namespace) -> int:
    if lacks_gpu("profile"):
        return Exit.NO_GPU
    from fp8gemm.lab.profiling.kernel import find_kernel
    from fp8gemm.lab.profiling.run import Subject

    subject = Subject(*find_kernel(*options.shape, label=options.config))
    if options.trace is None and options.timeline is None:
        with apart(options):
            print(subject.title)
            figures = subject.measure(options.seconds)
        tell_json(options, figures)
        return Exit.DONE
    print(subject.title)
    timeline, same = subject.trace(options.cta, options.trace)
    if options.timeline is not None:
        _draw(timeline, options.timeline)
    return Exit.DONE if same else Exit.FAILED


def _draw(timeline: Timeline, path: Path) -> None:
    from fp8gemm.lab.profiling.gantt import draw

    draw(timeline, path)
