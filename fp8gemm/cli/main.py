"""The command ``fp8gemm``: finds the subcommand, and tells a person about errors without a traceback."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from fp8gemm import __version__
from fp8gemm.cli.deprecated import with_json_last
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.interrupts import loading
from fp8gemm.cli.streams import clipped, drained, prepare_streams
from fp8gemm.errors import Fp8GemmError, InputError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


COMMANDS = {
    "demo": "Quantise, compile, multiply, check and time a few layers on the machine at hand.",
    "warmup": "Compile every kernel that shapes or a model can need, ahead of time.",
    "cache": "List, verify, seal, move and empty directories of compiled kernels.",
    "explain": "Derive the tile config of a product, term by term, beside the runners-up.",
    "report": "Draw one page about a model: its layers, their configs and times, a roofline, the kernels it needs.",
    "info": "Say what is installed, what this machine has, and whether kernels can run on it.",
    "doctor": "Judge what info finds: what is well, what is odd, what is in the way, and what mends it.",
    "tune": (
        "Time the candidate configs of shapes on this machine's Hopper GPU, judge the choice, and fill a tuned table."
    ),
    "bench": (
        "Time products beside other libraries, linear layers, or quantise functions, on this machine's Hopper GPU."
    ),
    "completion": "Print what makes a shell complete these commands, their options and their values.",
}
"""What each subcommand does. Its module, of the same name, has ``EXAMPLE``, which ends its help,
``add_arguments(parser)`` and ``run(options)``, which returns the exit code. It is imported when its command is asked
for: what the others need takes seconds to import."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv: the words after ``fp8gemm``; those of this process by default.

    Returns:
        The exit code: 0; 1 for an `Fp8GemmError`, whose message goes to standard error, for what the operating system
        or the installation refuses, or whatever else the subcommand calls a failure.

    Raises:
        SystemExit: with code 2 for bad arguments, with 0 after ``--help`` and ``--version``.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        prepare_streams()
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.filterwarnings("always", category=DeprecationWarning, module=r"fp8gemm\.cli\b")
            return _run(words)
    except Fp8GemmError as error:
        return _failed(str(error))
    except BrokenPipeError:
        return Exit.FAILED  # the reader has gone, as in `fp8gemm demo | head`
    except OSError as error:
        where = "" if drained() else "standard output: "
        return _failed(f"{where}{error}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "fp8gemm":
            raise
        missing = isinstance(error, ModuleNotFoundError) and error.name
        reason = f"{error.name}, which is not installed" if missing else f"what cannot be imported: {error}"
        return _failed(f"this command needs {reason}")
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    finally:
        drained()


def _run(words: Sequence[str]) -> int:
    """Whatever is printed is written when this returns."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError("expected a working directory; the one that this was started in is gone") from None
    try:
        with loading():
            parser = command_parser(*[word for word in words if word in COMMANDS][:1])
        options = parser.parse_args(with_json_last(words))
    except SystemExit:
        sys.stdout.flush()
        raise
    code = int(options.run(options))
    sys.stdout.flush()
    return code


def _failed(message: str) -> int:
    with suppress(OSError):  # standard error may be full too
        print(f"fp8gemm: {clipped(message)}", file=sys.stderr)
    return Exit.FAILED


class _Help(argparse.HelpFormatter):
    """One whose usage fits, though the library takes options that exclude each other for a single word."""

    def _format_usage(self, *args: Any, **kwargs: Any) -> str:
        lines = super()._format_usage(*args, **kwargs).split("\n")
        return "\n".join(part for line in lines for part in self._wrapped(line))

    def _wrapped(self, line: str) -> list[str]:
        indent = " " * (len(line) - len(line.lstrip()))
        more = f"{indent} "
        wrapped = textwrap.wrap(
            line, self._width, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
        )
        return wrapped or [line]


class _Parser(argparse.ArgumentParser):
    """One whose errors repeat no more of a word than others do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _Help, **kwargs})

    def error(self, message: str) -> NoReturn:
        super().error(clipped(message))

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # The library's own passes over an error, and --help into a full disk would be a success.
        if message:
            (file or sys.stderr).write(message)


def command_parser(*asked: str) -> argparse.ArgumentParser:
    """All commands by their summaries, and the arguments of those that are asked for."""
    parser = _Parser(prog="fp8gemm", description="FP8 matrix products with per-block scales on Hopper.")
    parser.add_argument("--version", action="version", version=f"fp8gemm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary[0].lower() + summary[1:].rstrip("."), description=summary)
        if name in asked:
            module = import_module(f"fp8gemm.cli.{name}")
            module.add_arguments(command)
            command.epilog = f"example: {module.EXAMPLE}"
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
    print(f"fp8gemm: warning: {clipped(str(message))}", file=file or sys.stderr)
