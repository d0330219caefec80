"""Elements of HTML and SVG. Text is escaped where it is written out, so that no name can be anything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None


def node(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """An element. Of the attributes ``class_`` is ``class``, ``font_size`` is ``font-size``; None is left out."""
    made = Element(
        tag,
        {
            name.rstrip("_").replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else str(value)
            for name, value in attributes.items()
            if value is not None
        },
    )
    last: Element | None = None
    for child in children:
        if isinstance(child, str):
            if last is None:
                made.text = (made.text or "") + child
            else:
                last.tail = (last.tail or "") + child
        elif child is not None:
            made.append(child)
            last = child
    return made


def titled(title: str, element: Element) -> Element:
    """With what is shown where a pointer rests on it, and told to those who do not see it."""
    element.insert(0, node("title", title))
    return element


def table(header: Sequence[str], rows: Iterable[Sequence[Child]], words: int = 1) -> Element:
    """A table that scrolls by itself where it is wider than the page; the first ``words`` columns are words, the rest
    figures."""

    def cells(kind: str, row: Sequence[Child]) -> Iterable[Element]:
        for index, cell in enumerate(row):
            yield node(kind, cell, class_=None if index < words else "figure")

    head = node("thead", node("tr", *cells("th", header)))
    body = node("tbody", *(node("tr", *cells("td", row)) for row in rows))
    return node("div", node("table", head, body), class_="scroll", tabindex="0")


def document(root: Element) -> str:
    """The whole file, in ASCII: whatever it is read as, it is read right."""
    text: bytes = tostring(root, encoding="us-ascii", method="html")
    return f"<!doctype html>\n{text.decode()}\n"
