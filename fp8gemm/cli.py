"""The command ``fp8gemm``: finds the subcommand, and tells a person about errors without a traceback."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from fp8gemm import __version__, explain, info
from fp8gemm.benchmark import command as bench
from fp8gemm.demo import command as demo
from fp8gemm.errors import Fp8GemmError
from fp8gemm.tune import command as tune

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # what a shell reports for a command that SIGINT ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv: the words after ``fp8gemm``; those of this process by default.

    Returns:
        The exit code: 0; 1 for an `Fp8GemmError`, whose message goes to standard error, or whatever else the subcommand
        calls a failure.

    Raises:
        SystemExit: with code 2 for bad arguments, with 0 after ``--help`` and ``--version``.
    """
    options = _parser().parse_args(argv)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = int(options.run(options))
            sys.stdout.flush()
            return code
        except Fp8GemmError as error:
            print(f"fp8gemm: {error}", file=sys.stderr)
            return EXIT_FAILED
        except BrokenPipeError:
            # NOTE: the reader has gone, as in `fp8gemm demo | head`. What is left to flush at exit must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fp8gemm", description="FP8 matrix products with per-block scales on Hopper.")
    parser.add_argument("--version", action="version", version=f"fp8gemm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, module in (("demo", demo), ("explain", explain), ("info", info), ("tune", tune), ("bench", bench)):
        summary = module.SUMMARY
        command = commands.add_parser(name, help=summary[0].lower() + summary[1:].rstrip("."), description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line, without the place in our code that Python would name."""
    print(f"fp8gemm: warning: {message}", file=file or sys.stderr)
