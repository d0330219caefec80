"""Bars of progress: on standard error, where that is a terminal, and gone when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TextIO, TypeVar

_T = TypeVar("_T")

_FORMAT = "{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}, ETA {remaining}]"
_UNKNOWN = "{desc}{n_fmt} {unit} [{elapsed}]"


class Bar(Protocol):
    """What a bar is used for."""

    def __enter__(self) -> Bar: ...

    def __exit__(self, *error: Any) -> Any: ...

    def update(self, n: int = 1) -> Any:
        """So many more are done."""

    def write(self, s: str, file: TextIO | None = None) -> None:
        """Print a line above the bar: of the results, on standard output, if no other file is named."""

    def set_description(self, desc: str) -> None:
        """Say what is being done now."""


def bar(total: int | None, unit: str, description: str = "", *, hidden: bool | None = None) -> Bar:
    """How much is done, the time it took, and the time that the rest will take at that rate.

    Args:
        total: of the work, in ``unit``; None where nobody knows, and then there is no telling when it ends.
        unit: what is counted, in the plural.
        description: what is done to them.
        hidden: whether nothing is shown; by default unless standard error is a terminal.
    """
    from tqdm import tqdm

    shown = sys.stderr.isatty() if hidden is None else not hidden
    progress: Bar = tqdm(
        total=total,
        unit=unit,
        desc=description and f"{description}: ",
        leave=False,
        disable=not shown,
        file=sys.stderr,
        bar_format=_UNKNOWN if total is None else _FORMAT,
        dynamic_ncols=True,
    )
    return progress


def print_above(text: str) -> None:
    """Print a line of the results, on standard output, above whatever bars are shown."""
    from tqdm import tqdm

    tqdm.write(text)


def over(items: Sequence[_T], unit: str, description: str = "") -> Iterator[_T]:
    """Each of these in turn, under a bar."""
    with bar(len(items), unit, description) as progress:
        for item in items:
            yield item
            progress.update()
