"""Files that take their names when they are whole and on stable storage, or leave no trace.

A reader sees the old file or the new one, and a crash leaves one of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""How to open a file that nobody else has made."""
_USUAL_MODE = 0o666
_PREFIX = ".fp8gemm-"


@contextmanager
def appearing(
    name: str | os.PathLike[str], *, inside: int | None = None, mode: int | None = None, prefix: str = _PREFIX
) -> Iterator[BinaryIO]:
    """A file to write, which takes its name, and the place of one of that name, when the block ends.

    Args:
        name: its path; relative to ``inside`` if that is given, and then no symlink is followed.
        inside: descriptor of the directory that will hold it.
        mode: whatever the umask; by default what the umask leaves.
        prefix: of its name until then, which ends in eight hexadecimal digits.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    directory, target = ("", os.fspath(name)) if inside is not None else os.path.split(os.path.realpath(name))
    draft = os.path.join(directory, f"{prefix}{token()}")
    try:
        with created(draft, inside=inside, mode=mode) as file:
            yield file
        os.rename(draft, os.path.join(directory, target), src_dir_fd=inside, dst_dir_fd=inside)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=inside)
        raise


@contextmanager
def created(name: str, *, inside: int | None = None, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file to write, where nothing has that name; it is on stable storage when the block ends, and stays if it fails.

    Args:
        name, inside, mode: as `appearing` takes them.

    Raises:
        OSError: it cannot be written, or something has that name.
    """
    descriptor = os.open(name, CREATE, _USUAL_MODE if mode is None else mode, dir_fd=inside)
    with open(descriptor, "wb") as file:
        if mode is not None:
            os.fchmod(descriptor, mode)
        yield file
        file.flush()
        os.fsync(descriptor)


def write_text(path: Path, text: str) -> None:
    """Make a file have this text, in UTF-8, and make the directories that it lies in.

    NOTE: what is there and is no file, such as ``/dev/stdout`` or a FIFO, keeps its name and is written to.

    Raises:
        OSError: it cannot be written.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            path.write_text(text, encoding="utf-8")
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    with appearing(path) as file:
        file.write(text.encode())


def obstacle(path: Path) -> str:
    """What is in the way of `write_text`, as far as a look tells; an empty string if nothing is. Makes nothing."""
    file = Path(os.path.realpath(path))
    there = next(each for each in (file, *file.parents) if each.exists())
    if file.is_dir():
        return f"the directory {file}"
    if there != file and not there.is_dir():
        return f"{there} above it, which is no directory"
    written = there.parent if file.is_file() else there  # a file is replaced by another one of its name
    return "" if os.access(written, os.W_OK) else f"{written}, which may not be written to"


def token() -> str:
    """Eight hexadecimal digits that nobody else has."""
    return os.urandom(4).hex()
