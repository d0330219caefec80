"""Files that a user names: regular ones alone, of a size that fits, opened without waiting and quoted in few words.

A name may be that of a FIFO, on which a plain open waits for ever, or of a device that has no end; and what a file
holds may be made to take memory and time, or to fill the screen. What is refused here is refused at once.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.quoting import quoted_path

MOST_NESTED = 32
"""How deep JSON may be. What is written here, and what models' files hold, is not a quarter of that."""

MOST_VALUES = 1 << 20
"""In one piece of JSON: each takes some 70 bytes of memory, however few it has in the file."""

MOST_DIGITS = 100
"""Of a number in JSON: no float is too small for it."""

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class NotRegularError(Exception):
    """Something is no regular file; the message says what it is."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        expected: what it is, for messages, such as "a tuned table".
        limit: bytes beyond which a file is none.
    """

    expected: str
    limit: int

    def unfit(self, path: str | os.PathLike[str], found: object) -> InputError:
        """The error for a file that is not of this kind; ``found`` says what it is instead."""
        return InputError(f"{quoted_path(path)}: expected {self.expected}, got: {found}")


def open_regular(
    name: str | os.PathLike[str], *, inside: int | None = None, follow: bool = True
) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and what is known of it; it never waits.

    Args:
        name: its path; relative to ``inside`` if that is given.
        inside: descriptor of the directory that holds it.
        follow: whether the name may be that of a symlink.

    Raises:
        NotRegularError: it is a symlink that is not followed, a FIFO, a device, a directory or a socket.
        OSError: it is not there, or cannot be opened.
    """
    # Asked before opening too: merely opening a device or a FIFO can have an effect.
    _require_regular(os.stat(name, dir_fd=inside, follow_symlinks=follow))
    descriptor = os.open(name, _OPEN | (0 if follow else os.O_NOFOLLOW), dir_fd=inside)
    try:
        status = os.fstat(descriptor)
        _require_regular(status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


@contextmanager
def opened(path: Path, kind: Kind) -> Iterator[BinaryIO]:
    """A file to read from.

    NOTE: a file may say that it has fewer bytes than can be read from it, as those of ``/proc`` do.

    Raises:
        InputError: it is not there, is no regular file, is too large for its kind, or cannot be read.
    """
    with ExitStack() as stack:
        try:
            descriptor, status = open_regular(path)
            file = stack.enter_context(open(descriptor, "rb"))
        except NotRegularError as error:
            raise kind.unfit(path, f"Is {error}, no regular file") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise kind.unfit(path, _reason(error)) from error
        if status.st_size > kind.limit:
            raise _too_large(path, kind, f"one of {status.st_size}")
        try:
            yield file
        except OSError as error:
            raise kind.unfit(path, _reason(error)) from error


def read_bytes(path: Path, kind: Kind) -> bytes:
    """The content of a file.

    Raises:
        InputError: as `opened`.
    """
    with opened(path, kind) as file:
        raw = file.read(kind.limit + 1)
    if len(raw) > kind.limit:
        raise _too_large(path, kind, "more")
    return raw


def read_lines(path: Path, kind: Kind, longest: int) -> Iterator[str]:
    """The lines of a file of UTF-8, each of at most ``longest`` bytes, one at a time.

    Raises:
        InputError: as `opened`, or a line is too long or no UTF-8.
    """
    with opened(path, kind) as file:
        number, left = 0, kind.limit
        while line := file.readline(longest + 1):
            number, left = number + 1, left - len(line)
            if left < 0:
                raise _too_large(path, kind, "more")
            if len(line) > longest:
                raise kind.unfit(f"{quoted_path(path)}:{number}", f"a line of more than {longest} bytes")
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise kind.unfit(f"{quoted_path(path)}:{number}", f"no UTF-8: {error}") from error


def read_json(path: Path, kind: Kind) -> Any:
    """What a file of JSON holds.

    Raises:
        InputError: as `opened`, or it does not hold what `parse_json` takes.
    """
    try:
        return parse_json(read_bytes(path, kind))
    except InputError:
        raise
    except ValueError as error:
        raise kind.unfit(path, f"no such JSON: {error}") from error


def parse_json(raw: bytes) -> Any:
    """JSON of which neither depth, nor width, nor a number is too large to handle.

    Raises:
        ValueError: it is no JSON, or not such.
    """
    values = sum(map(raw.count, (b",", b"[", b"{")))
    if values > MOST_VALUES:
        raise ValueError(f"expected at most {MOST_VALUES} values; found about {values}")
    too_deep = f"expected objects and lists at most {MOST_NESTED} deep; found deeper ones"
    try:
        found = json.loads(raw, parse_int=_whole_number)
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [found]
    for _ in range(MOST_NESTED):
        held = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = [each for values in held for each in values if isinstance(each, (dict, list))]
    if level:
        raise ValueError(too_deep)
    return found


def kind_of(mode: int) -> str:
    """What a file of this mode is, for messages."""
    kinds = (
        (stat.S_ISLNK, "a symlink"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISREG, "a file"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for matches, name in kinds if matches(mode)), "a device")


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(kind_of(status.st_mode))


def _too_large(path: Path, kind: Kind, found: str) -> InputError:
    return InputError(f"{quoted_path(path)}: expected {kind.expected}, of at most {kind.limit} bytes, got {found}")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"expected numbers of at most {MOST_DIGITS} digits; found one of {len(digits)}")
    return int(digits)
