"""Writing to the cache: whole directories appear at once, private to their owner, or not at all."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from fp8gemm.cache.entry import IncompleteError
from fp8gemm.writing import CREATE, appearing, created, token

_P = ParamSpec("_P")
_T = TypeVar("_T")

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

LOCK_SUFFIX = ".lock"

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# What network and overlay file systems answer now and then, and take back when asked again.
_TRANSIENT = frozenset({errno.ESTALE, errno.EBUSY, errno.EIO, errno.EINTR})
_PAUSES_S = (0.001, 0.01, 0.05)


def retrying(operation: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call an operation, and again a few times if it fails in a way that may pass."""
    for pause in _PAUSES_S:
        try:
            return operation(*args, **kwargs)
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
        except IncompleteError:
            pass  # whoever removes the entry will soon be done, and then there is none
        time.sleep(pause)
    return operation(*args, **kwargs)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, each with mode 0700 whatever the umask."""
    if path.is_dir():
        return
    make_directories(path.parent)
    with suppress(FileExistsError):
        path.mkdir(DIRECTORY_MODE)
        path.chmod(DIRECTORY_MODE)  # an odd umask can take the owner's own bits away


def publish_directory(name: str, files: Mapping[str, bytes], *, inside: int, replace: bool = False) -> bool:
    """Make a directory with these files appear under its name in one step, complete and on stable storage.

    Args:
        name: of the new directory.
        files: file names and contents.
        inside: descriptor of the directory to hold it.
        replace: put it in the place of a directory of that name, which for a moment is not there then.

    Returns:
        Whether it was done; False if something of that name is there already.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    temporary = f"{temporary_prefix(name)}{token()}"
    os.mkdir(temporary, DIRECTORY_MODE, dir_fd=inside)
    try:
        descriptor = os.open(temporary, _OPEN_DIRECTORY, dir_fd=inside)
        try:
            os.fchmod(descriptor, DIRECTORY_MODE)
            for file_name, content in files.items():
                with created(file_name, inside=descriptor, mode=FILE_MODE) as file:
                    file.write(content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            remove_whole(name, inside=inside)
        os.rename(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
    except OSError as error:
        remove_directory(temporary, inside=inside)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    except BaseException:
        remove_directory(temporary, inside=inside)
        raise
    os.fsync(inside)
    return True


def publish_file(name: str, content: bytes, *, inside: int, mode: int = FILE_MODE) -> None:
    """Make a file appear under its name in one step, complete and on stable storage, in the place of one of that name.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    with appearing(name, inside=inside, mode=mode, prefix=temporary_prefix(name)) as file:
        file.write(content)


def set_aside(name: str, *, inside: int) -> str | None:
    """Move a directory, or whatever has its name, out of the way for a later look; remove it if it cannot be moved.

    Returns:
        Its new name, None if it was removed.

    Raises:
        OSError: neither could be done.
    """
    prefix = f".quarantine-{name}-"
    remove_matching(prefix, inside=inside)  # one specimen of a kind is enough
    moved = f"{prefix}{token()}"
    try:
        os.rename(name, moved, src_dir_fd=inside, dst_dir_fd=inside)
    except FileNotFoundError:
        return None
    except OSError:  # an overlay file system cannot rename a directory of its lower layer, but it can remove it
        _remove(name, inside=inside)
        return None
    return moved


def require_locks(*, inside: int) -> None:
    """Try a lock that nobody else can hold: where even that one is not to be had, the file system has none.

    NOTE: flock says EAGAIN, or EACCES, of a lock that is held; some file systems say so of every lock.

    Raises:
        OSError: it has none.
    """
    import fcntl

    name = f"probe.{os.urandom(32).hex()}{LOCK_SUFFIX}"  # the name of a kernel's, so that it is known if it stays
    descriptor = os.open(name, CREATE, FILE_MODE, dir_fd=inside)
    try:
        os.unlink(name, dir_fd=inside)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def remove_whole(name: str, *, inside: int) -> None:
    """Remove a directory, as far as possible, so that nobody finds a part of it: it loses its name first."""
    moved = f"{temporary_prefix(name)}{token()}"
    with suppress(FileNotFoundError):
        os.rename(name, moved, src_dir_fd=inside, dst_dir_fd=inside)
        remove_directory(moved, inside=inside)


def temporary_prefix(name: str) -> str:
    """What the names of the temporary directories of an entry, or of temporary files, begin with."""
    return f".tmp-{name}-"


def remove_matching(prefix: str, *, inside: int) -> None:
    """Remove, as far as possible, the directories whose names begin with a prefix."""
    for name in os.listdir(inside):
        if name.startswith(prefix):
            remove_directory(name, inside=inside)


def remove_directory(name: str, *, inside: int) -> None:
    """Remove a directory of files, as far as possible."""
    with suppress(OSError):
        _remove(name, inside=inside)


def _remove(name: str, *, inside: int) -> None:
    # Anything but files in it is not ours: unlink() then fails, and the directory stays. Symlinks are not followed.
    descriptor = os.open(name, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)
    try:
        for file_name in os.listdir(descriptor):
            os.unlink(file_name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=inside)
