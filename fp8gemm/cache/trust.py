"""Which directories and files the cache may read. A cubin runs on the GPU with this process's rights to its memory.

Everything is checked on an open descriptor and read through the same descriptor, so that nothing can be exchanged
between the check and the use.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from fp8gemm.reading import NotRegularError, kind_of, open_regular

_OPEN = os.O_RDONLY | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UnsafeError(Exception):
    """A directory or file must not be used; the message says why."""


@contextmanager
def opened_directory(
    name: str | os.PathLike[str], *, inside: int | None = None, trusted: bool = False
) -> Iterator[int]:
    """Open a directory that is safe to read code from, as a descriptor for the ``dir_fd`` of other calls.

    Args:
        name: its path; relative to ``inside`` if that is given.
        inside: descriptor of the directory that holds it.
        trusted: leave out the checks, because the user vouches for the place. A symlink inside it is still refused.

    Raises:
        UnsafeError: it is a symlink or no directory, or somebody else can write to it.
        OSError: it is not there, or cannot be opened.
    """
    follow = trusted and inside is None
    try:
        # O_DIRECTORY fails at once on a FIFO or a device, where a plain open would block or act.
        descriptor = os.open(name, _OPEN | os.O_DIRECTORY | (0 if follow else os.O_NOFOLLOW), dir_fd=inside)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        status = os.stat(name, dir_fd=inside, follow_symlinks=False)
        raise UnsafeError(f"expected a directory; found {kind_of(status.st_mode)}") from error
    try:
        if not trusted:
            _check_owner_and_mode(os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular_file(name: str, *, inside: int, limit: int, trusted: bool = False) -> bytes:
    """The content of a regular file of at most ``limit`` bytes in an open directory.

    Raises:
        UnsafeError: it is a symlink, a FIFO, a device or too long, or somebody else can write to it.
        OSError: it is not there, or cannot be read.
    """
    try:
        descriptor, status = open_regular(name, inside=inside, follow=False)
    except NotRegularError as error:
        raise UnsafeError(f"expected a regular file; found {error}") from None
    with open(descriptor, "rb") as file:
        if not trusted:
            _check_owner_and_mode(status)
        if status.st_size > limit:
            raise UnsafeError(f"{name} has {status.st_size} bytes; expected at most {limit}")
        return file.read(limit)


def is_sealed(descriptor: int) -> bool:
    """Whether a directory is not to be written: its owner took the write permission away, or we have none.

    The owner's bit is asked first because root may write everywhere, sealed directories included.
    """
    owner_may_write = os.fstat(descriptor).st_mode & stat.S_IWUSR
    return not owner_may_write or not os.access(".", os.W_OK, dir_fd=descriptor)


def _check_owner_and_mode(status: os.stat_result) -> None:
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        raise UnsafeError(f"expected it to belong to user {user} or to root; it belongs to user {status.st_uid}")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise UnsafeError(f"expected that its owner alone can write to it; its mode is {mode:04o}")
