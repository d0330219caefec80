"""Where standard output is read: how wide that is, and whether it shows colours."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

from fp8gemm.frozen import dataclass

_STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}


@dataclass(frozen=True)
class Screen:
    """Where text is read. As it stands by default, a file or a pipe: lines of any length, and nothing but text.

    Attributes:
        columns: that a line may have; None for any number.
        colours: whether `paint` does anything.
    """

    columns: int | None = None
    colours: bool = False

    def paint(self, text: str, style: str) -> str:
        """The text in a style: "bold", "red", "green" or "yellow". A colour is never all that says something."""
        return f"\033[{_STYLES[style]}m{text}\033[0m" if self.colours and text else text

    def wrap(self, text: str, *, first: str = "", more: str = "") -> list[str]:
        """Lines of prose, the first behind ``first`` and each other behind ``more``.

        A word that no line has room for stays whole, so that a path can be copied: the terminal breaks it.
        """
        if self.columns is None:
            return [f"{first}{text}".rstrip()]
        wrapped = textwrap.wrap(
            text,
            max(self.columns, len(first) + 1, len(more) + 1),
            initial_indent=first,
            subsequent_indent=more,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return wrapped or [first.rstrip()]

    def fill(self, text: str) -> str:
        """Prose of several paragraphs, each a line of ``text``."""
        return "\n".join(part for line in text.split("\n") for part in self.wrap(line))


PLAIN = Screen()
"""A file, a pipe, or a string that may go anywhere."""


def screen() -> Screen:
    """Where standard output goes now."""
    # NOTE: not asked once, because commands redirect it, and windows are resized.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return Screen(columns, _shows_colours())


def _shows_colours() -> bool:
    """In the order in which Python itself asks for the colours of its tracebacks; `no-color.org` and `bixense.com`
    say what the variables mean."""
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
