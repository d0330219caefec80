"""What messages show: what others gave - values, texts, paths - in few characters and one line, counts, and sizes."""

from __future__ import annotations

import os

MOST_QUOTED = 80
"""Characters of something that came that a message repeats."""

_MOST_OF_PATH = 256


def quoted(value: object) -> str:
    """A value, as Python writes it, cut off. Python itself refuses to write numbers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 2 * MOST_QUOTED:
        return f"about {'-' * (value < 0)}2^{value.bit_length()}"
    return cut(repr(value[: MOST_QUOTED + 1] if isinstance(value, str) else value))


def cut(text: str) -> str:
    """A text of others in a message, cut off."""
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."


def printable(text: str) -> str:
    """A text as it can be printed anywhere, in one line: others may have given it, and put anything into it."""
    return text if text.isprintable() else ascii(text)


def quoted_path(path: str | os.PathLike[str]) -> str:
    """A path in a message: whole up to a length that people type, so that it can be copied."""
    text = printable(os.fspath(path))
    return text if len(text) <= _MOST_OF_PATH else f"{text[: MOST_QUOTED // 2]}...{text[-MOST_QUOTED // 2 :]}"


def counted(count: int, thing: str) -> str:
    """A number of things: "1 kernel", "2 kernels"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def size_text(size: int) -> str:
    """Bytes for people, in units of 1024."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
