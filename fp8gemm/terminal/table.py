"""Tables of text. A file or a pipe gets a row a line, however long; on a terminal what is too wide goes below.

Rows can be drawn one at a time, as they are measured, so the widths of columns are known before the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fp8gemm.terminal.screen import Screen, screen

_BAR, _INDENT = " | ", "    "


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        title: of one line or several.
        width: that it has at least; its title may be wider.
        left: of words, which begin on the left. Figures end on the right.
    """

    title: str = ""
    width: int = 0
    left: bool = False

    @property
    def room(self) -> int:
        """Characters that it takes."""
        return max(self.width, *map(len, self.title.split("\n")))

    def fit(self, text: str) -> str:
        """A text that is shorter than the column, at its side."""
        return text.ljust(self.room) if self.left else text.rjust(self.room)


@dataclass(frozen=True)
class Group:
    """Columns with a bar at either side.

    Attributes:
        title: stands above theirs.
    """

    columns: tuple[Column, ...]
    title: str = ""


class Painted(NamedTuple):
    """A cell in a style of `Screen.paint`."""

    text: str
    style: str


Cell = str | Painted


class _Place(NamedTuple):
    """Where a column stands on a line of its row, and what is before it."""

    column: int
    before: str
    at: int


class Table:
    """How rows are drawn.

    Args:
        groups: of columns. On a screen that is too narrow for a row a group goes to the next line, or what of it does
            not fit; the text of a last column of words is wrapped. Nothing is cut off.
        gap: between the columns of a group.
        on: where it is read, by default where standard output goes now.
    """

    def __init__(self, *groups: Group, gap: str = " ", on: Screen | None = None) -> None:
        self._screen = screen() if on is None else on
        self._groups, self._gap = groups, gap
        self._columns = [column for group in groups for column in group.columns]
        self._lines = self._placed()

    @property
    def folded(self) -> bool:
        """Whether a row has several lines."""
        return len(self._lines) > 1

    @property
    def width(self) -> int:
        """Characters of a row that is not folded, with no more text in the last column than that is made for."""
        return sum(map(self._width, self._groups)) + len(_BAR) * (len(self._groups) - 1)

    def header(self) -> str:
        """Groups' titles, if they have any, above those of the columns; where rows are folded with a rule below."""
        titles = [column.title.split("\n") for column in self._columns]
        lines = []
        for places in self._lines:
            above = self._above(places)
            lines += [above] if above else []
            for number in range(max(len(titles[place.column]) for place in places)):
                texts = {index: title[number] if number < len(title) else "" for index, title in enumerate(titles)}
                lines.append(
                    "".join(place.before + self._columns[place.column].fit(texts[place.column]) for place in places)
                )
        painted = [self._screen.paint(line.rstrip(), "bold") for line in lines if line.strip()]
        return "\n".join([*painted, *(["-" * max(map(len, lines))] if self.folded else [])])

    def line(self, *cells: Cell) -> str:
        """One row."""
        found = [cell if isinstance(cell, Painted) else Painted(cell, "") for cell in cells]
        return "\n".join(line for places in self._lines for line in self._drawn(places, found))

    def remark(self, text: str) -> str:
        """What is to be said of the row above."""
        indent = _INDENT
        if len(self._groups) > 1 and not self.folded:
            indent = " " * self._width(self._groups[0]) + _BAR
        return "\n".join(self._screen.wrap(text, first=indent, more=indent))

    def _drawn(self, places: Sequence[_Place], cells: Sequence[Painted]) -> list[str]:
        """The lines of a row that one line of the layout takes: more where a cell is wider than its column."""
        lines, used, text = [], 0, ""
        for place in places:
            cell, column = cells[place.column], self._columns[place.column]
            before, room = place.before, self._screen.columns
            if column.left and column is self._columns[-1]:
                first, *more = self._screen.wrap(cell.text, first=" " * (used + len(before)), more=" " * place.at)
                lines += [text + before + self._painted(first[used + len(before) :], cell), *more]
                return [line.rstrip() for line in lines]
            if room is not None and used + len(before) + max(len(cell.text), column.room) > room and used:
                lines.append(text)
                used, text, before = 0, "", _INDENT
            fitted = column.fit(cell.text)
            text += before + fitted.replace(cell.text, self._painted(cell.text, cell), 1)
            used += len(before) + len(fitted)
        return [line.rstrip() for line in [*lines, text]]

    def _painted(self, text: str, cell: Painted) -> str:
        return self._screen.paint(text, cell.style) if cell.style else text

    def _placed(self) -> list[list[_Place]]:
        """The columns, line by line."""
        room = self._screen.columns
        lines: list[list[_Place]] = [[]]
        index, used = 0, 0
        for group in self._groups:
            if room is not None and lines[-1] and used + len(_BAR) + self._width(group) > room:
                lines.append([])
            for number, column in enumerate(group.columns):
                before = self._before(lines, number == 0)
                if room is not None and lines[-1] and used + len(before) + column.room > room:
                    lines.append([])
                    before = _INDENT
                if not lines[-1]:
                    used = 0
                lines[-1].append(_Place(index, before, used + len(before)))
                used += len(before) + column.room
                index += 1
        return lines

    def _before(self, lines: Sequence[Sequence[_Place]], new_group: bool) -> str:
        if not lines[-1]:
            return _INDENT if len(lines) > 1 else ""
        return _BAR if new_group else self._gap

    def _width(self, group: Group) -> int:
        return sum(column.room for column in group.columns) + len(self._gap) * (len(group.columns) - 1)

    def _above(self, places: Sequence[_Place]) -> str:
        """The titles of the groups that begin on a line; empty where none has one."""
        titles, first = {}, 0
        for group in self._groups:
            titles[first] = group.title
            first += len(group.columns)
        if not any(titles.get(place.column) for place in places):
            return ""
        above = ""
        for place in places:
            if place.column in titles:
                above = above.ljust(place.at - len(place.before)) + place.before + titles[place.column]
        return above.rstrip(_BAR)


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Group:
    """Columns that are as wide as what is in these rows, for a table whose rows are all there.

    The last one keeps its width where it is of words, which can be wrapped.
    """
    texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in rows]
    wide = [
        replace(column, width=max([column.width, *(len(row[index]) for row in texts)]))
        for index, column in enumerate(columns)
    ]
    return Group((*wide[:-1], columns[-1] if columns[-1].left else wide[-1]))
