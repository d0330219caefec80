"""Spellings of an earlier release: they work, with a warning, in this one, and the next does without them."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

from fp8gemm.quoting import quoted


class Renamed(argparse.Action):
    """An option under its name of an earlier release, which no help names."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, new: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **kwargs)
        self.new = new

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        deprecate(f"{option_string}: write {self.new}; the next release does without the old word")
        setattr(namespace, self.dest, values)


def deprecate(message: str) -> None:
    """Warn of a spelling that the next release does without; the command line shows it."""
    warnings.warn(message, DeprecationWarning, stacklevel=1)


def with_json_last(words: Sequence[str]) -> list[str]:
    """The words of a command, ``--json`` before a directory, a file or a size told from ``--json PATH``.

    NOTE: of these commands it took no path before, and of their other words none ends like a file of JSON.
    """
    found = list(words)
    if not {"cache", "explain"} & set(words[:1]):
        return found
    for at, (word, following) in enumerate(zip(words, words[1:], strict=False)):
        if word == "--json" and not following.startswith("-") and not following.endswith(".json"):
            deprecate(
                f"--json {quoted(following)}: --json takes a path now, which has to end in .json here; write --json "
                "last; the next release takes any word behind it for the path"
            )
            found[at] = "--json=-"
    return found
