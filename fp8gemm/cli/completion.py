"""``fp8gemm completion``: what the parsers of all commands know, as a script that a shell reads once.

It is whole: a shell that has read it completes without starting Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fp8gemm.cli.arguments import Words
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, tell, tell_json

EXAMPLE = "fp8gemm completion bash"


class Kind(Enum):
    """What an argument is completed by."""

    WORDS = "words"
    LIST = "list"  #: words with commas between them
    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"  #: nothing: a number, a shape


@dataclass(frozen=True)
class Value:
    """An argument.

    Attributes:
        words: that it is completed by.
        optional: whether it may be missing behind its option.
    """

    kind: Kind
    words: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Option:
    """An option of a command; a flag has no value."""

    names: tuple[str, ...]
    help: str
    value: Value | None


@dataclass(frozen=True)
class Command:
    """A command, or an action of one.

    Attributes:
        path: its words, without ``fp8gemm``: none for that alone.
        commands: those that may come next, with what they do.
    """

    path: tuple[str, ...]
    options: tuple[Option, ...]
    positionals: tuple[Value, ...]
    commands: tuple[tuple[str, str], ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    from fp8gemm.cli.shells import SHELLS

    parser.add_argument("shell", choices=tuple(SHELLS), help="whose script; its first lines say where it goes")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the script. 0."""
    from fp8gemm.cli.main import COMMANDS, command_parser
    from fp8gemm.cli.shells import SHELLS

    script = SHELLS[options.shell](list(commands_of(command_parser(*COMMANDS))))
    tell(options, script.rstrip("\n"))
    tell_json(options, {"shell": options.shell, "script": script})
    return Exit.DONE


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """A command and, behind it, each below it. What no help names is left out: it is on its way out."""
    options, positionals, below = list[Option](), list[Value](), dict[str, argparse.ArgumentParser]()
    summaries = list[tuple[str, str]]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            summaries = [(each.dest, each.help or "") for each in action._choices_actions]
        elif not action.option_strings:
            positionals.append(_value_of(action))
        elif action.help != argparse.SUPPRESS:
            value = None if action.nargs == 0 else _value_of(action)
            told = parser._get_formatter()._expand_help(action) if action.help else ""
            options.append(Option(tuple(action.option_strings), told, value))
    yield Command(path, tuple(options), tuple(positionals), tuple(summaries))
    for name, each in below.items():
        yield from commands_of(each, (*path, name))


def _value_of(action: argparse.Action) -> Value:
    optional = action.nargs == argparse.OPTIONAL
    if action.choices is not None:
        return Value(Kind.WORDS, tuple(map(str, action.choices)), optional)
    if isinstance(action.type, Words) and action.type.known:
        return Value(Kind.LIST if action.type.several else Kind.WORDS, action.type.known, optional)
    if action.type is Path:
        return Value(Kind.DIRECTORY if action.metavar == "DIR" else Kind.FILE, optional=optional)
    return Value(Kind.OTHER, optional=optional)
